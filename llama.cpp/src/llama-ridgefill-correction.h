#pragma once

// The recurrent states of a sequence: reading them, and adding a multiple of the side file's constants to them. States
// that were fed by predictions end up off by a roughly constant tensor; the constant is its mean over many bulk ends.

#include "llama.h"

#include "ggml-backend.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

class llama_memory_recurrent;
struct llama_memory_i;
struct llama_ubatch;
struct ridgefill_shares; // llama-ridgefill-decay.h

// By layer: one value per value of the layer's state, in the model's order of heads.
using ridgefill_corrections = std::map<int32_t, std::vector<float>>;

// index[p] = the grouped head at place p of n_heads tiled ones: grouped k * r + i is tiled i * n_key_heads + k.
std::vector<uint32_t> ridgefill_tiled_index(uint32_t n_heads, uint32_t n_key_heads);

// [n_heads][head_size], grouped by key head -> tiled
std::vector<float> ridgefill_tiled(const std::vector<float> & grouped, uint32_t n_heads, uint32_t n_key_heads);

// The memory gives sequences other cells when a ubatch needs them side by side, or a shared one to themselves, and the
// graph moves the states. A graph of some layers leaves those of the others behind, so this moves all of them first, as
// find_slot() will want it.
void ridgefill_settle(llama_memory_recurrent & memory, const llama_ubatch & ubatch, ggml_backend_sched_t sched);

// The recurrent part of a context's memory; nullptr: there is none.
llama_memory_recurrent * ridgefill_recurrent(llama_memory_i * memory);

// The next row of seq will start from state + scale * share * constants, and no other sequence is changed. share: by
// layer and head, nullptr for 1; a head whose share is 0 keeps its bits. The computation of earlier rows must be
// complete. Returns false when the sequence has no state.
bool ridgefill_correction_add(
    llama_memory_recurrent & memory, llama_seq_id seq, const ridgefill_corrections & constants, float scale,
    const ridgefill_shares * share
);

// Number of values of layer il's state (0: it has none or the sequence is empty); copies them when dst has room.
size_t
ridgefill_state_get(const llama_memory_recurrent & memory, llama_seq_id seq, int32_t il, float * dst, size_t n_max);
