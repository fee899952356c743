#pragma once

// Rows of the stream entering layer S, kept on the host until quality mode runs some of them through the late layers.
// Knows no graph and no plan.

#include "ggml.h"
#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <vector>

class ridgefill_rows {
  public:
    // Drops everything. half: rows are stored as F16 (2 bytes a value instead of 4, not bit-exact). n_rows: how many
    // will come, so that they are never moved.
    void start(int32_t width, bool half, size_t n_rows);

    // Rows come in ascending positions; a gap is a row that was not kept.
    void append(llama_pos pos, llama_token token, const float * row);

    // Drops rows at and after pos.
    void cut(llama_pos pos);

    size_t size() const { return pos.size(); }
    llama_pos pos_at(size_t i) const { return pos[i]; }
    llama_token token_at(size_t i) const { return token[i]; }
    llama_token token_of(llama_pos p) const { return token[index(p)]; }

    bool has(llama_pos p) const;

    // The row of position p (which must be there) as F32 [width].
    void get(llama_pos p, float * out) const;

    static size_t bytes_per_row(int32_t width, bool half) { return (size_t) width * (half ? 2 : 4); }

  private:
    int32_t width = 0;
    bool half = false;

    std::vector<llama_pos> pos;
    std::vector<llama_token> token;
    std::vector<float> full_rows; // [size][width]
    std::vector<ggml_fp16_t> half_rows;

    size_t index(llama_pos p) const; // size() when absent
};
