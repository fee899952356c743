#pragma once

// Our op beside upstream's mul_mat on one device.

#include "backend-options.h"

#include <chrono>

enum perf_type { PERF_RIDGEFILL, PERF_ROUNDED, PERF_Q8_0, PERF_BF16, PERF_COUNT };
static const char * perf_types[PERF_COUNT] = {"ridgefill", "rounded", "q8_0", "bf16"};

struct perf_run {
    ggml_backend_ptr backend;
    ggml_context_ptr ctx_weights, ctx_rest, ctx_graph;
    ggml_backend_buffer_ptr weights, rest;
    std::string buffer_name;
    ggml_cgraph * graph = nullptr;
    int n_ops = 1;
    std::vector<double> us;
};

inline std::vector<ggml_backend_buffer_type_t> buffer_types(ggml_backend_dev_t dev) {
    std::vector<ggml_backend_buffer_type_t> types;
    auto extra = (ggml_backend_dev_get_extra_bufts_t
    ) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    for (auto * t = extra ? extra(dev) : nullptr; t && *t; t++) {
        types.push_back(*t);
    }
    types.push_back(ggml_backend_dev_buffer_type(dev));
    return types;
}

// The op repeated in one graph, so that the cost of starting a graph does not count, on several weights in turn, so
// that they come from memory as the layers of a model do; x is the same for all, as it is for the maps. The result has
// graph == NULL when the backend has no such op. Each has a backend of its own: Mesa 22.3's llvmpipe does not stand it
// when descriptor sets are used again after buffers that they once held are gone (ggml-ridgefill/vulkan/README.md).
inline perf_run
perf_prepare(ggml_backend_dev_t dev, int n_threads, perf_type type, int64_t k, int64_t n, int64_t rows) {
    perf_run run;
    run.backend = open_backend(dev, n_threads);
    if (!run.backend) {
        return run;
    }
    const bool cpu = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    run.n_ops = int(std::clamp<int64_t>(int64_t(cpu ? 4e8 : 4e11) / (k * n * rows), 1, 32));
    const bool ours = type == PERF_RIDGEFILL || type == PERF_ROUNDED;
    if (type == PERF_ROUNDED) {
        run.n_ops = std::max(run.n_ops, 4); // a graph has more maps, so the rounding counts for more here than there
    }
    const int n_weights = int(std::clamp<int64_t>((256 << 20) / (k * n), 1, run.n_ops));
    run.ctx_weights.reset(ggml_init({128 * ggml_tensor_overhead(), nullptr, true}));
    run.ctx_rest.reset(ggml_init({64 * ggml_tensor_overhead(), nullptr, true}));
    run.ctx_graph.reset(ggml_init({ggml_graph_overhead() + 64 * ggml_tensor_overhead(), nullptr, true}));

    ggml_context * cw = run.ctx_weights.get();
    ggml_tensor * x = ggml_new_tensor_2d(run.ctx_rest.get(), GGML_TYPE_F32, k, rows);
    const ggml_type weight_type = ours ? GGML_TYPE_I8 : type == PERF_Q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_BF16;
    std::vector<ggml_tensor *> ws, scales, y;
    for (int i = 0; i < n_weights; i++) {
        ws.push_back(ggml_new_tensor_2d(cw, weight_type, k, n));
        if (ours) {
            scales.push_back(ggml_new_tensor_2d(cw, GGML_TYPE_BF16, ggml_ridgefill_n_groups(k), n));
        }
    }
    ggml_context * cr = run.ctx_rest.get();
    ggml_tensor * rounded = type == PERF_ROUNDED ? ggml_ridgefill_round(cr, ws[0], x) : nullptr;
    for (int i = 0; i < run.n_ops; i++) {
        ggml_tensor * w = ws[i % n_weights];
        y.push_back(
            rounded ? ggml_ridgefill_rounded(cr, w, scales[i % n_weights], nullptr, rounded)
            : ours  ? ggml_ridgefill(cr, w, scales[i % n_weights], nullptr, x)
                    : ggml_mul_mat(cr, w, x)
        );
    }

    for (ggml_backend_buffer_type_t buft : buffer_types(dev)) {
        // upstream's loader asks in the same way: an empty buffer of the type, then supports_op
        ggml_backend_buffer_ptr probe(ggml_backend_buft_alloc_buffer(buft, 0));
        ws[0]->buffer = probe.get();
        const bool usable = ggml_backend_dev_supports_op(dev, y[0]);
        ws[0]->buffer = nullptr;
        if (usable) {
            run.weights.reset(ggml_backend_alloc_ctx_tensors_from_buft(cw, buft));
            run.buffer_name = ggml_backend_buft_name(buft);
            break;
        }
    }
    if (!run.weights) {
        return run;
    }
    run.rest.reset(ggml_backend_alloc_ctx_tensors(run.ctx_rest.get(), run.backend.get()));
    if (!run.rest) {
        return run;
    }

    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> values(k * std::max<int64_t>(n, rows));
    for (auto & v : values) {
        v = normal(random);
    }
    ggml_backend_tensor_set(x, values.data(), 0, ggml_nbytes(x));
    std::vector<char> bytes(ggml_nbytes(ws[0]));
    switch (type) {
    case PERF_RIDGEFILL:
    case PERF_ROUNDED:
        std::generate(bytes.begin(), bytes.end(), [&] { return char(int(random() % 255) - 127); });
        break;
    case PERF_Q8_0:
        ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), bytes.data(), 0, n, k, nullptr);
        break;
    default:
        ggml_fp32_to_bf16_row(values.data(), (ggml_bf16_t *) bytes.data(), k * n);
        break;
    }
    for (ggml_tensor * w : ws) {
        ggml_backend_tensor_set(w, bytes.data(), 0, bytes.size());
    }
    for (ggml_tensor * scale : scales) {
        std::vector<ggml_bf16_t> ones(ggml_nelements(scale), ggml_fp32_to_bf16(0.01f));
        ggml_backend_tensor_set(scale, ones.data(), 0, ggml_nbytes(scale));
    }

    run.graph = ggml_new_graph(run.ctx_graph.get());
    for (ggml_tensor * t : y) {
        ggml_build_forward_expand(run.graph, t);
    }
    return run;
}

inline double time_us(perf_run & run) {
    const auto begin = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(run.backend.get(), run.graph) != GGML_STATUS_SUCCESS) {
        return -1.0;
    }
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    return us.count() / run.n_ops;
}

inline double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
}

inline bool run_perf(ggml_backend_dev_t dev, const options & opt, FILE * csv, FILE * json, bool & first) {
    if (!open_backend(dev, opt.n_threads)) {
        return false;
    }
    const char * name = ggml_backend_dev_name(dev);
    const bool cpu = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    printf(
        "%s: %s%s\n", name, ggml_backend_dev_description(dev),
        cpu ? (", " + std::to_string(opt.n_threads) + " threads").c_str() : ""
    );
    printf("%6s %6s %6s |", "K", "N", "rows");
    for (const char * type : perf_types) {
        printf(" %10s us  TOP/s |", type);
    }
    printf(" speed over q8_0, bf16\n");

    for (auto [k, n] : opt.shapes) {
        for (int64_t rows : opt.rows) {
            std::vector<perf_run> runs;
            for (int type = 0; type < PERF_COUNT; type++) {
                runs.push_back(perf_prepare(dev, opt.n_threads, perf_type(type), k, n, rows));
            }
            const auto begin = std::chrono::steady_clock::now();
            for (int i = -1; i < 1000; i++) { // the first run warms up
                for (perf_run & run : runs) {
                    const double us = run.graph ? time_us(run) : -1.0;
                    if (i >= 0 && us > 0.0) {
                        run.us.push_back(us);
                    }
                }
                const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
                if (i >= 2 && spent.count() > opt.seconds * PERF_COUNT) {
                    break;
                }
            }

            printf("%6lld %6lld %6lld |", (long long) k, (long long) n, (long long) rows);
            double us[PERF_COUNT] = {};
            for (int type = 0; type < PERF_COUNT; type++) {
                if (runs[type].us.empty()) {
                    printf(" %13s %6s |", "-", "-");
                    continue;
                }
                us[type] =
                    opt.best ? *std::min_element(runs[type].us.begin(), runs[type].us.end()) : median(runs[type].us);
                const double tops = 2.0 * k * n * rows / us[type] * 1e-6;
                printf(" %13.1f %6.3f |", us[type], tops);
                if (csv) {
                    fprintf(
                        csv, "%s,%s,%s,%d,%lld,%lld,%lld,%.2f,%.4f\n", name, perf_types[type],
                        runs[type].buffer_name.c_str(), cpu ? opt.n_threads : 0, (long long) k, (long long) n,
                        (long long) rows, us[type], tops
                    );
                }
                if (json) {
                    fprintf(
                        json,
                        "%s\n{\"backend\": \"%s\", \"type\": \"%s\", \"k\": %lld, \"n\": %lld, \"rows\": %lld, \"us\": "
                        "%.2f, \"tops\": %.4f}",
                        first ? "" : ",", name, perf_types[type], (long long) k, (long long) n, (long long) rows,
                        us[type], tops
                    );
                    first = false;
                }
            }
            const double best = us[PERF_ROUNDED] > 0.0 ? us[PERF_ROUNDED] : us[PERF_RIDGEFILL];
            printf(best > 0.0 ? " %.2f %.2f\n" : "\n", us[PERF_Q8_0] / best, us[PERF_BF16] / best);
            fflush(stdout);
        }
    }
    return true;
}
