#include "llama-ridgefill-rows.h"

#include <algorithm>

void ridgefill_rows::start(int32_t width, bool half, size_t n_rows) {
    *this = {};
    this->width = width;
    this->half = half;
    full_rows.reserve(half ? 0 : n_rows * (size_t) width);
    half_rows.reserve(half ? n_rows * (size_t) width : 0);
}

void ridgefill_rows::append(llama_pos p, llama_token t, const float * row) {
    GGML_ASSERT(pos.empty() || p > pos.back());
    pos.push_back(p);
    token.push_back(t);
    if (half) {
        half_rows.resize(half_rows.size() + (size_t) width);
        ggml_fp32_to_fp16_row(row, half_rows.data() + half_rows.size() - (size_t) width, width);
    } else {
        full_rows.insert(full_rows.end(), row, row + width);
    }
}

void ridgefill_rows::cut(llama_pos p) {
    const size_t n = (size_t) (std::lower_bound(pos.begin(), pos.end(), p) - pos.begin());
    pos.resize(n);
    token.resize(n);
    full_rows.resize(half ? 0 : n * (size_t) width);
    half_rows.resize(half ? n * (size_t) width : 0);
}

size_t ridgefill_rows::index(llama_pos p) const {
    const auto it = std::lower_bound(pos.begin(), pos.end(), p);
    return it == pos.end() || *it != p ? pos.size() : (size_t) (it - pos.begin());
}

bool ridgefill_rows::has(llama_pos p) const {
    return index(p) < pos.size();
}

void ridgefill_rows::get(llama_pos p, float * out) const {
    const size_t i = index(p);
    GGML_ASSERT(i < pos.size());
    if (half) {
        ggml_fp16_to_fp32_row(half_rows.data() + i * (size_t) width, out, width);
    } else {
        std::copy_n(full_rows.data() + i * (size_t) width, width, out);
    }
}
