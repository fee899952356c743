// The op on any backend.
//
//   ridgefill-test-backend-ridgefill [test] [-b NAME]     values against float64, all backends or one (CPU, CUDA0, ...)
//   ridgefill-test-backend-ridgefill support [-b NAME]    which cases a backend takes
//   ridgefill-test-backend-ridgefill perf [-b NAME] [-s KxN,...] [-r ROWS,...] [-t THREADS] [--time S] [--best]
//                                         [--csv F] [--json F]
//        our op (with x rounded by each, and rounded once for all), Q8_0 and bf16 mul_mat side by side; weights lie in
//        the buffer type that the backend likes best for them (repacked on the CPU). us is the median of alternating
//        runs, with --best the smallest (for a busy machine); TOP/s counts 2*K*N*ROWS operations.
//
// A new case: add a line to test_cases. A new type to compare with: add it to perf_types.

#include "op-case.h"

#include <chrono>
#include <cstdlib>

struct options {
    std::string mode = "test";
    std::string backend;
    std::vector<std::pair<int64_t, int64_t>> shapes = {{576, 576}, {4096, 4096}, {10240, 2560}};
    std::vector<int64_t> rows = {1, 32, 128, 512, 2048};
    int n_threads = 2;
    double seconds = 0.5; // per shape, row count and type
    bool best = false;
    std::string csv, json;
};

static std::vector<op_case> test_cases() {
    std::vector<op_case> cases;
    for (int64_t n_in : {32, 128, 160, 576, 2560}) {
        for (int64_t n_out : {1, 33, 576}) {
            for (int64_t n_rows : {1, 7, 33, 130, 512}) {
                cases.push_back(
                    {n_in, n_out, n_rows, op_values((n_in / 32 + n_out + n_rows) % OP_VALUES_COUNT), n_rows % 2 == 1,
                     n_out % 2 ? 0 : 8}
                );
            }
        }
    }
    cases.push_back({4096, 4096, 64});
    cases.push_back({10240, 2560, 33, OP_VALUES_OUTLIERS});
    cases.push_back({576, 576, 4095});
    return cases;
}

// NULL and a line on stderr when it does not start
static ggml_backend_ptr open_backend(ggml_backend_dev_t dev, int n_threads) {
    ggml_backend_ptr backend(ggml_backend_dev_init(dev, nullptr));
    if (!backend) {
        fprintf(stderr, "%s: does not start\n", ggml_backend_dev_name(dev));
        return backend;
    }
    auto set_n_threads = (ggml_backend_set_n_threads_t
    ) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ggml_backend_set_n_threads");
    if (set_n_threads) {
        set_n_threads(backend.get(), n_threads);
    }
    return backend;
}

static bool run_test(ggml_backend_dev_t dev, const options & opt) {
    ggml_backend_ptr backend = open_backend(dev, opt.n_threads);
    if (!backend) {
        return false;
    }
    int n_ok = 0, n_bad = 0, n_skipped = 0;
    for (const op_case & c : test_cases()) {
        if (!ggml_backend_dev_supports_op(dev, op_make_graph(c).y)) {
            n_skipped++;
            continue;
        }
        const op_data d = op_make_data(c);
        const std::vector<float> y = op_run(backend.get(), c, d);
        const op_errors e = op_compare(c, d, y);
        bool ok = e.nmse_ok() && e.n_unset == 0 && e.n_compared > 0;
        if (!ok) {
            printf("FAIL %s nmse=%.2e unset=%lld\n", c.vars().c_str(), e.nmse, (long long) e.n_unset);
        }
        if (ggml_backend_dev_supports_op(dev, op_make_graph(c, true).y)) {
            const std::vector<float> apart = op_run(backend.get(), c, d, true);
            if (apart.size() != y.size() || memcmp(apart.data(), y.data(), y.size() * sizeof(float)) != 0) {
                printf("FAIL %s x rounded apart: other bits\n", c.vars().c_str());
                ok = false;
            }
        }
        (ok ? n_ok : n_bad)++;
    }
    printf("%s: %d passed, %d failed, %d not supported\n", ggml_backend_dev_name(dev), n_ok, n_bad, n_skipped);
    return n_bad == 0;
}

static void run_support(ggml_backend_dev_t dev) {
    for (const op_case & c : test_cases()) {
        printf(
            "%-8s %-4s %s\n", ggml_backend_dev_name(dev),
            ggml_backend_dev_supports_op(dev, op_make_graph(c).y) ? "yes" : "no", c.vars().c_str()
        );
    }
}

//
// perf
//

enum perf_type { PERF_RIDGEFILL, PERF_ROUNDED, PERF_Q8_0, PERF_BF16, PERF_COUNT };
static const char * perf_types[PERF_COUNT] = {"ridgefill", "rounded", "q8_0", "bf16"};

struct perf_run {
    ggml_context_ptr ctx_weights, ctx_rest, ctx_graph;
    ggml_backend_buffer_ptr weights, rest;
    std::string buffer_name;
    ggml_cgraph * graph = nullptr;
    int n_ops = 1;
    std::vector<double> us;
};

static std::vector<ggml_backend_buffer_type_t> buffer_types(ggml_backend_dev_t dev) {
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
// graph == NULL when the backend has no such op.
static perf_run
perf_prepare(ggml_backend_dev_t dev, ggml_backend_t backend, perf_type type, int64_t k, int64_t n, int64_t rows) {
    perf_run run;
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
    run.rest.reset(ggml_backend_alloc_ctx_tensors(run.ctx_rest.get(), backend));
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

static double time_us(ggml_backend_t backend, perf_run & run) {
    const auto begin = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend, run.graph) != GGML_STATUS_SUCCESS) {
        return -1.0;
    }
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    return us.count() / run.n_ops;
}

static double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
}

static bool run_perf(ggml_backend_dev_t dev, const options & opt, FILE * csv, FILE * json, bool & first) {
    ggml_backend_ptr backend = open_backend(dev, opt.n_threads);
    if (!backend) {
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
                runs.push_back(perf_prepare(dev, backend.get(), perf_type(type), k, n, rows));
            }
            const auto begin = std::chrono::steady_clock::now();
            for (int i = -1; i < 1000; i++) { // the first run warms up
                for (perf_run & run : runs) {
                    const double us = run.graph ? time_us(backend.get(), run) : -1.0;
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

//
// command line
//

[[noreturn]] static void usage(const std::string & problem) {
    fprintf(
        stderr,
        "test-backend-ridgefill: %s\n"
        "hint: [test|support|perf] [-b BACKEND] [-s KxN,...] [-r ROWS,...] [-t THREADS] [--time S] [--best] [--csv F] "
        "[--json F]\n",
        problem.c_str()
    );
    exit(2);
}

static std::vector<std::string> split(const std::string & text) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

static options parse(int argc, char ** argv) {
    options opt;
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        if (arg == "test" || arg == "support" || arg == "perf") {
            opt.mode = arg;
            continue;
        }
        if (arg == "--best") {
            opt.best = true;
            continue;
        }
        if (i + 1 == argc) {
            usage("unknown mode or missing value: " + arg);
        }
        const std::string value = argv[++i];
        if (arg == "-b") {
            opt.backend = value;
        } else if (arg == "-t") {
            opt.n_threads = atoi(value.c_str());
        } else if (arg == "--time") {
            opt.seconds = atof(value.c_str());
        } else if (arg == "--csv") {
            opt.csv = value;
        } else if (arg == "--json") {
            opt.json = value;
        } else if (arg == "-r") {
            opt.rows.clear();
            for (const std::string & part : split(value)) {
                opt.rows.push_back(atoll(part.c_str()));
                if (opt.rows.back() < 1) {
                    usage("bad row count: " + part);
                }
            }
        } else if (arg == "-s") {
            opt.shapes.clear();
            for (const std::string & part : split(value)) {
                long long k = 0, n = 0;
                if (sscanf(part.c_str(), "%lldx%lld", &k, &n) != 2 || k < 32 || k % 32 || n < 1) {
                    usage("bad shape: " + part);
                }
                opt.shapes.push_back({k, n});
            }
        } else {
            usage("unknown option: " + arg);
        }
    }
    if (opt.n_threads < 1) {
        usage("bad thread count");
    }
    return opt;
}

static FILE * open_for_writing(const std::string & path) {
    if (path.empty()) {
        return nullptr;
    }
    FILE * file = fopen(path.c_str(), "w");
    if (!file) {
        fprintf(stderr, "test-backend-ridgefill: cannot write: %s\n", path.c_str());
        exit(1);
    }
    return file;
}

int main(int argc, char ** argv) {
    const options opt = parse(argc, argv);
    ggml_backend_load_all();

    FILE * csv = open_for_writing(opt.csv);
    FILE * json = open_for_writing(opt.json);
    if (csv) {
        fprintf(csv, "backend,type,buffer,threads,k,n,rows,us,tops\n");
    }
    if (json) {
        fprintf(json, "[");
    }

    bool ok = true, first = true;
    int n_found = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (!opt.backend.empty() && opt.backend != ggml_backend_dev_name(dev)) {
            continue;
        }
        n_found++;
        if (opt.mode == "test") {
            ok = run_test(dev, opt) && ok;
        } else if (opt.mode == "support") {
            run_support(dev);
        } else {
            ok = run_perf(dev, opt, csv, json, first) && ok;
        }
    }
    if (json) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    if (csv) {
        fclose(csv);
    }
    if (n_found == 0) {
        fprintf(stderr, "test-backend-ridgefill: no such backend: %s\nhint: devices here:", opt.backend.c_str());
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            fprintf(stderr, " %s", ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        fprintf(stderr, "\n");
        return 1;
    }
    return ok ? 0 : 1;
}
