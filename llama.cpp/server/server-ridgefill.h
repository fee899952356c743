#pragma once

// RidgeFill in llama-server: the request field, what a request may reuse, and what every answer says was done.
//
// Knows requests, slots' sequences and the C API. Knows nothing of maps, graphs or batches.

#include "llama-ridgefill.h"

#include "json.h"

#include <cstdint>
#include <string>
#include <vector>

using json = common_json;

struct common_adapter_lora_info;
struct server_task;

// The `ridgefill` field of a request: "off" | "plumb" | "speed" | "quality" | {"mode": ..., "tail": N, "share": X}.
// Members that are absent or null keep what params holds. Throws std::invalid_argument with the value found and the
// values allowed.
void server_ridgefill_parse(const json & field, llama_ridgefill_params & params);

// Which rows of a sequence or of a stored prompt were filled.
struct server_ridgefill_marks {
    std::vector<llama_ridgefill_interval> parts; // oldest first

    server_ridgefill_marks() = default;
    server_ridgefill_marks(const llama_context * ctx, llama_seq_id seq_id);

    llama_ridgefill_interval hull() const;
    void restore(llama_context * ctx, llama_seq_id seq_id) const;
};

// What one task may do, decided from the request alone and never from what other requests left behind.
struct server_ridgefill_policy {
    llama_ridgefill_params params; // what the request asks for
    const char * exact = nullptr;  // why its prompt must run exactly whatever it asks for; nullptr: it may be filled
    bool fills = false;            // a prompt of this length, with nothing cached, would be filled
    int32_t n_prompt = 0;

    // lora: the adapters the prompt will run under
    server_ridgefill_policy(
        const llama_context * ctx, const server_task & task, const std::vector<common_adapter_lora_info> & lora
    );

    // How many of the first n_match cached rows may be reused. Prompts that will not be filled reuse exact rows only.
    size_t reusable(const server_ridgefill_marks & filled, size_t n_match) const;
    size_t reusable(const llama_context * ctx, llama_seq_id seq_id, size_t n_match) const;
};

// Rows of all prompts since the server started, for /metrics.
struct server_ridgefill_metrics {
    uint64_t n_filled = 0;
    uint64_t n_exact = 0;

    std::string to_prometheus() const;
};

// What happened to one prompt. Copied with the slot's stats into results and child slots.
struct server_ridgefill_stats {
    llama_ridgefill_mode mode = LLAMA_RIDGEFILL_MODE_OFF; // asked for by the request or the server's default
    const char * reason = "no_plan";                      // why nothing was filled
    int32_t n_filled = 0;
    int32_t n_selected = 0;      // rows between head and tail that quality mode ran exactly
    int32_t n_filled_cached = 0; // of the reused rows, at most so many were filled by earlier requests

    // Final answer on n_past: cuts the sequence's filled interval there and announces the rest of the prompt.
    void announce(
        llama_context * ctx, llama_seq_id seq_id, const server_task & task,
        const std::vector<common_adapter_lora_info> & lora, int32_t n_past
    );

    // After each decode, while the prompt is processed.
    void
    update(const llama_context * ctx, const server_task * task, uint64_t n_processed, server_ridgefill_metrics & sum);

    json to_json(uint64_t n_processed) const;

  private:
    llama_seq_id seq_id = -1; // announced and not yet complete, else -1
    bool fixed_reason = false;
    uint64_t n_todo = 0;
    uint64_t n_counted = 0; // of n_processed, already in the metrics
};

// A sequence was emptied, or holds exact rows only (a restored slot file).
void server_ridgefill_clear(llama_context * ctx, llama_seq_id seq_id);
// All rows of src were copied to dst.
void server_ridgefill_copy(llama_context * ctx, llama_seq_id src, llama_seq_id dst);
// Rows of a sequence were moved to other positions: from now on any of its rows may be a filled one.
void server_ridgefill_shifted(llama_context * ctx, llama_seq_id seq_id);
// Throws std::runtime_error when the sequence holds filled rows: a slot file has no place for their marks.
void server_ridgefill_require_exact(const llama_context * ctx, llama_seq_id seq_id);
// Chunks of the cache are moved only within exact sequences: 0 when the sequence holds filled rows, else n_cache_reuse.
int32_t server_ridgefill_cache_reuse(const llama_context * ctx, llama_seq_id seq_id, int32_t n_cache_reuse);

// The text of a failed decode's error, with the device that is gone if there is one.
std::string server_ridgefill_compute_error(const llama_context * ctx);

// RAM prompt cache: does a stored prompt make the first n rows of another one superfluous? Both hold the same tokens
// there; the stored one must have at least as many exact rows before its first filled row.
bool server_ridgefill_covers(const server_ridgefill_marks & stored, const server_ridgefill_marks & other, size_t n);

// For /props: the projector with what the loader warned of; {"refused": why} when it was refused; null without one.
json server_ridgefill_props(const llama_context * ctx);
