// The op on any backend.
//
//   ridgefill-test-backend-ridgefill [test] [-b NAME]     values against float64, all backends or one (CPU, CUDA0, ...)
//                                           [-x FILE:WIDTH]   with real activations too: rows of f32
//   ridgefill-test-backend-ridgefill support [-b NAME]    which cases a backend takes
//   ridgefill-test-backend-ridgefill perf [-b NAME] [-s KxN,...] [-r ROWS,...] [-t THREADS] [--time S] [--best]
//                                         [--csv F] [--json F]
//        our op (with x rounded by each, and rounded once for all), Q8_0 and bf16 mul_mat side by side; weights lie in
//        the buffer type that the backend likes best for them (repacked on the CPU). us is the median of alternating
//        runs, with --best the smallest (for a busy machine); TOP/s counts 2*K*N*ROWS operations.
//
// A new case: add a line to test_cases. A new type to compare with: add it to perf_types (backend-perf.h).

#include "backend-options.h"
#include "backend-perf.h"
#include "op-case.h"

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

// Rows of f32 from a file as x, with made-up codes. An absent or empty file is a failure.
static bool run_file(ggml_backend_dev_t dev, ggml_backend_t backend, const options & opt) {
    std::vector<float> x;
    if (FILE * file = fopen(opt.x.c_str(), "rb")) {
        std::vector<float> row(opt.x_width);
        while (fread(row.data(), sizeof(float), row.size(), file) == row.size()) {
            x.insert(x.end(), row.begin(), row.end());
        }
        fclose(file);
    }
    const op_case c = {opt.x_width, 576, int64_t(x.size()) / opt.x_width};
    if (c.n_rows == 0) {
        printf("FAIL %s: no row of %lld values\n", opt.x.c_str(), (long long) opt.x_width);
        return false;
    }
    op_data d = op_make_data(c);
    d.x = x;
    const op_errors e = op_compare(c, d, op_run(backend, c, d));
    const bool ok = e.nmse_ok() && e.n_unset == 0;
    printf(
        "%s%s: %lld rows of a file, nmse=%.2e\n", ok ? "" : "FAIL ", ggml_backend_dev_name(dev), (long long) c.n_rows,
        e.nmse
    );
    return ok;
}

// A NaN or an infinity in x shows in all of its row and nowhere else.
static bool run_not_finite(ggml_backend_t backend, const op_case & c) {
    const std::vector<float> good = op_run(backend, c, op_make_data(c));
    const float infinity = std::numeric_limits<float>::infinity();
    bool ok = !good.empty();
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        op_data d = op_make_data(c);
        d.x[7 * c.stride() + c.n_in - 1] = bad;
        const std::vector<float> y = op_run(backend, c, d);
        for (int64_t i = 0; ok && i < c.n_rows * c.n_out; i++) {
            ok = y.size() == good.size() && (i / c.n_out == 7 ? std::isnan(y[i]) : y[i] == good[i]);
        }
    }
    if (!ok) {
        printf("FAIL %s a value that is not finite\n", c.vars().c_str());
    }
    return ok;
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
    for (const op_case & c : {op_case{160, 33, 9}, op_case{576, 130, 70}}) {
        (!ggml_backend_dev_supports_op(dev, op_make_graph(c).y) ? n_skipped
         : run_not_finite(backend.get(), c)                     ? n_ok
                                                                : n_bad)++;
    }
    printf("%s: %d passed, %d failed, %d not supported\n", ggml_backend_dev_name(dev), n_ok, n_bad, n_skipped);
    return n_bad == 0 && (opt.x.empty() || run_file(dev, backend.get(), opt));
}

static void run_support(ggml_backend_dev_t dev) {
    for (const op_case & c : test_cases()) {
        printf(
            "%-8s %-4s %s\n", ggml_backend_dev_name(dev),
            ggml_backend_dev_supports_op(dev, op_make_graph(c).y) ? "yes" : "no", c.vars().c_str()
        );
    }
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
