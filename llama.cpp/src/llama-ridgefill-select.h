#pragma once

// Which bulk rows quality mode runs exactly. Numbers only: no tensors, no context.

#include "llama-ridgefill.h"

#include <cstddef>
#include <cstdint>
#include <vector>

// What the tail's queries ask for: the last rows of a prompt are its question.
constexpr int32_t RIDGEFILL_N_QUESTION = 16;

// The attention that the tail's queries pay to each bulk row, summed by layer and head. A head's maximum over heads
// counts, not their mean: one retrieving head must not be outvoted (docs/decisions.md).
class ridgefill_scores {
  public:
    enum query { QUESTION = 0, TAIL = 1, N_QUERIES = 2 };

    void start(size_t n_rows);

    // Adds attention [n_kv, N_QUERIES, n_head] of one layer; cell[r]: the cache cell of bulk row r.
    void add(size_t layer, const float * attention, size_t n_kv, size_t n_head, const std::vector<uint32_t> & cell);

    // Per bulk row: the largest share that any head gives it of what the head gives to the bulk. F32 [n_rows]
    std::vector<float> maxima(query q) const;

    bool empty() const { return sums.empty(); }

  private:
    size_t n_rows = 0;
    std::vector<std::vector<float>> sums; // [layer][(head * N_QUERIES + q) * n_rows + row]
};

// Indices of the chosen rows, ascending. pos, token: of each bulk row, ascending positions. table: score per token id
// (facts of a published table: finite = may be kept), may be null unless select is CLASS. block: attention chooses
// whole runs of so many positions.
std::vector<uint32_t> ridgefill_select(
    llama_ridgefill_select select, float share, const std::vector<llama_pos> & pos,
    const std::vector<llama_token> & token, const ridgefill_scores & scores, const std::vector<float> * table,
    llama_pos block = 1
);
