#pragma once

// One case of the op for tests and benchmarks: made-up data, a graph of one node on any backend, references in float64.

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-ridgefill.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

enum op_values {
    OP_VALUES_NORMAL,   // x from a normal distribution
    OP_VALUES_OUTLIERS, // one input of every group is 8 times larger, as the massive channels of real models are
    OP_VALUES_ZEROS,    // whole groups of x and of codes are zero, one row is zero throughout
    OP_VALUES_EXTREME,  // codes are -128 or 127 and x has one magnitude: the largest integer sums
    OP_VALUES_COUNT
};

inline const char * op_values_name(op_values values) {
    static const char * names[OP_VALUES_COUNT] = {"normal", "outliers", "zeros", "extreme"};
    return names[values];
}

struct op_case {
    int64_t n_in;
    int64_t n_out;
    int64_t n_rows;
    op_values values = OP_VALUES_NORMAL;
    bool bias = true;
    int64_t pad = 0; // floats between rows of x
    uint32_t seed = 1;

    int64_t n_groups() const { return ggml_ridgefill_n_groups(n_in); }
    int64_t stride() const { return n_in + pad; }

    std::string vars() const {
        char text[160];
        snprintf(
            text, sizeof(text), "n_in=%lld,n_out=%lld,n_rows=%lld,x=%s,bias=%d,pad=%lld,seed=%u", (long long) n_in,
            (long long) n_out, (long long) n_rows, op_values_name(values), bias, (long long) pad, seed
        );
        return text;
    }
};

struct op_data {
    std::vector<int8_t> codes;      // [n_out][n_in]
    std::vector<ggml_bf16_t> scale; // [n_out][n_groups]
    std::vector<float> bias;        // [n_out], empty without bias
    std::vector<float> x;           // [n_rows][stride]; NaN between the rows
};

inline op_data op_make_data(const op_case & c) {
    std::mt19937 random(c.seed * 2654435761u + uint32_t(c.n_in * 31 + c.n_out * 17 + c.n_rows));
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::uniform_int_distribution<int> code(-127, 127);
    std::uniform_real_distribution<float> exponent(-12.0f, -6.0f);

    op_data d;
    d.codes.resize(c.n_out * c.n_in);
    d.scale.resize(c.n_out * c.n_groups());
    d.bias.resize(c.bias ? c.n_out : 0);
    d.x.assign(c.n_rows * c.stride(), std::numeric_limits<float>::quiet_NaN());
    for (auto & v : d.codes) {
        v = int8_t(code(random));
    }
    for (auto & v : d.scale) {
        v = ggml_fp32_to_bf16(std::exp2(exponent(random)));
    }
    for (auto & v : d.bias) {
        v = normal(random);
    }
    for (int64_t r = 0; r < c.n_rows; r++) {
        for (int64_t i = 0; i < c.n_in; i++) {
            float v = normal(random);
            switch (c.values) {
            case OP_VALUES_NORMAL:
                break;
            case OP_VALUES_OUTLIERS:
                v = i % GGML_RIDGEFILL_GROUP == 17 ? 8.0f * v : v;
                break;
            case OP_VALUES_ZEROS:
                v = (i / GGML_RIDGEFILL_GROUP + r) % 3 == 0 || r == 1 ? 0.0f : v;
                break;
            case OP_VALUES_EXTREME:
                v = r % 2 ? 1.0f : -1.0f;
                break;
            case OP_VALUES_COUNT:
                break;
            }
            d.x[r * c.stride() + i] = v;
        }
    }
    for (int64_t o = 0; o < c.n_out; o++) {
        for (int64_t i = 0; i < c.n_in; i++) {
            int8_t & v = d.codes[o * c.n_in + i];
            if (c.values == OP_VALUES_EXTREME) {
                v = o % 2 ? -128 : 127;
            } else if (c.values == OP_VALUES_ZEROS && (i / GGML_RIDGEFILL_GROUP + o) % 4 == 1) {
                v = 0;
                d.scale[o * c.n_groups() + i / GGML_RIDGEFILL_GROUP] = ggml_fp32_to_bf16(1.0f);
            }
        }
    }
    return d;
}

// The tensors of a case in one context; the caller allocates them.
struct op_graph {
    ggml_context_ptr ctx;
    ggml_tensor * codes;
    ggml_tensor * scale;
    ggml_tensor * bias;
    ggml_tensor * x_base; // with the padding
    ggml_tensor * y;
};

// apart: x is rounded by an op of its own
inline op_graph op_make_graph(const op_case & c, bool apart = false) {
    op_graph g = {};
    g.ctx.reset(ggml_init({16 * ggml_tensor_overhead(), nullptr, true}));
    ggml_context * ctx = g.ctx.get();
    g.codes = ggml_new_tensor_2d(ctx, GGML_TYPE_I8, c.n_in, c.n_out);
    g.scale = ggml_new_tensor_2d(ctx, GGML_TYPE_BF16, c.n_groups(), c.n_out);
    g.bias = c.bias ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, c.n_out) : nullptr;
    g.x_base = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, c.stride(), c.n_rows);
    ggml_tensor * x = c.pad ? ggml_view_2d(ctx, g.x_base, c.n_in, c.n_rows, g.x_base->nb[1], 0) : g.x_base;
    g.y = apart ? ggml_ridgefill_rounded(ctx, g.codes, g.scale, g.bias, ggml_ridgefill_round(ctx, g.codes, x))
                : ggml_ridgefill(ctx, g.codes, g.scale, g.bias, x);
    return g;
}

// Runs the case; the result is poisoned with NaN before. Returns y [n_rows][n_out], empty when a call failed.
inline std::vector<float> op_run(ggml_backend_t backend, const op_case & c, const op_data & d, bool apart = false) {
    op_graph g = op_make_graph(c, apart);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(g.ctx.get(), backend));
    if (!buffer) {
        return {};
    }
    ggml_backend_tensor_set(g.codes, d.codes.data(), 0, ggml_nbytes(g.codes));
    ggml_backend_tensor_set(g.scale, d.scale.data(), 0, ggml_nbytes(g.scale));
    ggml_backend_tensor_set(g.x_base, d.x.data(), 0, ggml_nbytes(g.x_base));
    if (g.bias) {
        ggml_backend_tensor_set(g.bias, d.bias.data(), 0, ggml_nbytes(g.bias));
    }
    std::vector<float> y(c.n_rows * c.n_out, std::numeric_limits<float>::quiet_NaN());
    ggml_backend_tensor_set(g.y, y.data(), 0, ggml_nbytes(g.y));

    ggml_context_ptr ctx_graph(ggml_init({ggml_graph_overhead() + 4096, nullptr, true}));
    ggml_cgraph * graph = ggml_new_graph(ctx_graph.get());
    ggml_build_forward_expand(graph, g.y);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        return {};
    }
    ggml_backend_tensor_get(g.y, y.data(), 0, ggml_nbytes(g.y));
    return y;
}

// Rows that are compared: all of a small case, the first, the last and some between of a large one.
inline std::vector<int64_t> op_checked_rows(const op_case & c) {
    const int64_t wanted = std::clamp<int64_t>(int64_t(2e7) / (c.n_in * c.n_out), 6, c.n_rows > 6 ? c.n_rows : 6);
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < std::min(wanted, c.n_rows); i++) {
        rows.push_back(wanted >= c.n_rows ? i : i * (c.n_rows - 1) / (wanted - 1));
    }
    return rows;
}

// The contract in float64, nothing rounded.
inline std::vector<double> op_exact_row(const op_case & c, const op_data & d, int64_t row) {
    std::vector<double> y(c.n_out);
    const float * x = d.x.data() + row * c.stride();
    for (int64_t o = 0; o < c.n_out; o++) {
        double sum = c.bias ? d.bias[o] : 0.0;
        for (int64_t g = 0; g < c.n_groups(); g++) {
            double dot = 0.0;
            for (int64_t i = g * GGML_RIDGEFILL_GROUP; i < std::min((g + 1) * GGML_RIDGEFILL_GROUP, c.n_in); i++) {
                dot += double(d.codes[o * c.n_in + i]) * x[i];
            }
            sum += ggml_bf16_to_fp32(d.scale[o * c.n_groups() + g]) * dot;
        }
        y[o] = sum;
    }
    return y;
}

// The W8A8 arithmetic: x rounded per group as the header says (the rounding is f32), everything after it in float64.
// magnitude[o] receives the sum of the absolute terms.
inline std::vector<double>
op_w8a8_row(const op_case & c, const op_data & d, int64_t row, std::vector<double> & magnitude) {
    std::vector<int> q(c.n_in);
    std::vector<float> q_scale(c.n_groups());
    const float * x = d.x.data() + row * c.stride();
    for (int64_t g = 0; g < c.n_groups(); g++) {
        const int64_t begin = g * GGML_RIDGEFILL_GROUP;
        const int64_t end = std::min(begin + GGML_RIDGEFILL_GROUP, c.n_in);
        float absmax = 0.0f;
        for (int64_t i = begin; i < end; i++) {
            absmax = std::max(absmax, std::fabs(x[i]));
        }
        q_scale[g] = absmax > 0.0f ? absmax / 127.0f : 1.0f;
        const float inverse = absmax > 0.0f ? 127.0f / absmax : 0.0f;
        for (int64_t i = begin; i < end; i++) {
            q[i] = int(std::nearbyint(x[i] * inverse));
        }
    }
    std::vector<double> y(c.n_out);
    magnitude.assign(c.n_out, 0.0);
    for (int64_t o = 0; o < c.n_out; o++) {
        y[o] = c.bias ? d.bias[o] : 0.0;
        magnitude[o] = std::fabs(y[o]);
        for (int64_t g = 0; g < c.n_groups(); g++) {
            int64_t dot = 0;
            for (int64_t i = g * GGML_RIDGEFILL_GROUP; i < std::min((g + 1) * GGML_RIDGEFILL_GROUP, c.n_in); i++) {
                dot += int64_t(d.codes[o * c.n_in + i]) * q[i];
            }
            const double term = double(ggml_bf16_to_fp32(d.scale[o * c.n_groups() + g])) * q_scale[g] * double(dot);
            y[o] += term;
            magnitude[o] += std::fabs(term);
        }
    }
    return y;
}

// Allowed for a backend that computes W8A8. Rounding x to 8 bits costs about 4e-5, with our outliers 2e-4; one channel
// per group that is 30 times larger would cost 6e-4 by itself. A mean over few elements says little: see nmse_ok.
constexpr double OP_MAX_NMSE = 5e-4;

struct op_errors {
    double nmse = 0.0;   // against the float64 contract
    double rounds = 0.0; // largest |y - w8a8| in units of f32 rounding of the terms
    int64_t n_unset = 0; // elements that are not finite (all rows)
    int64_t n_compared = 0;

    bool nmse_ok() const { return nmse < (n_compared >= 512 ? OP_MAX_NMSE : 40 * OP_MAX_NMSE); }
};

inline op_errors op_compare(const op_case & c, const op_data & d, const std::vector<float> & y) {
    op_errors e;
    double error2 = 0.0, exact2 = 0.0;
    std::vector<double> magnitude;
    for (int64_t row : op_checked_rows(c)) {
        const std::vector<double> exact = op_exact_row(c, d, row);
        const std::vector<double> w8a8 = op_w8a8_row(c, d, row, magnitude);
        for (int64_t o = 0; o < c.n_out; o++) {
            const double v = y[row * c.n_out + o];
            e.n_compared++;
            error2 += (v - exact[o]) * (v - exact[o]);
            exact2 += exact[o] * exact[o];
            e.rounds = std::max(e.rounds, std::fabs(v - w8a8[o]) / (magnitude[o] * std::ldexp(1.0, -24) + 1e-300));
        }
    }
    e.nmse = exact2 > 0.0 ? error2 / exact2 : error2;
    e.n_unset = std::count_if(y.begin(), y.end(), [](float v) { return !std::isfinite(v); });
    return e;
}
