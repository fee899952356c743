// Cases of the op for upstream's test-backend-ops, which includes this file once, behind its own cases (hook in
// llama.cpp/patches/0001-ggml-op.patch):
//
//   test-backend-ops [test|support|perf] -o RIDGEFILL [-b NAME]
//
// test compares a backend with the plain code of ridgefill-ref.cpp. More kinds of values and float64 as the oracle:
// test-backend-ridgefill.cpp.

#include "ggml-ridgefill.h"

struct test_ridgefill : public test_case {
    const int64_t n_in;
    const int64_t n_out;
    const int64_t n_rows;
    const bool bias;
    const int64_t pad;  // floats between rows of x
    const bool rounded; // x rounded by an op of its own

    test_ridgefill(int64_t n_in, int64_t n_out, int64_t n_rows, bool bias = true, int64_t pad = 0, bool rounded = false)
        : n_in(n_in), n_out(n_out), n_rows(n_rows), bias(bias), pad(pad), rounded(rounded) {}

    std::string vars() override { return VARS_TO_STR6(n_in, n_out, n_rows, bias, pad, rounded); }

    // a backend may round x to 8 bits, as the CPU does, or not at all
    double max_nmse_err() override { return n_out * n_rows >= 512 ? 5e-4 : 2e-2; }

    uint64_t op_flops(ggml_tensor * t) override {
        GGML_UNUSED(t);
        return 2 * n_in * n_out * n_rows;
    }

    // the rounded form has a layout of the backend's own, so only the result is compared
    bool run_whole_graph() override { return rounded; }

    ggml_tensor * build_graph(ggml_context * ctx) override {
        ggml_tensor * codes = ggml_new_tensor_2d(ctx, GGML_TYPE_I8, n_in, n_out);
        ggml_set_name(codes, "codes");
        ggml_tensor * scale = ggml_new_tensor_2d(ctx, GGML_TYPE_BF16, ggml_ridgefill_n_groups(n_in), n_out);
        ggml_set_name(scale, "scale");
        ggml_tensor * b = bias ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_out) : nullptr;
        ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_in + pad, n_rows);
        if (pad) {
            x = ggml_view_2d(ctx, x, n_in, n_rows, x->nb[1], 0);
        }
        ggml_tensor * y = rounded ? ggml_ridgefill_rounded(ctx, codes, scale, b, ggml_ridgefill_round(ctx, codes, x))
                                  : ggml_ridgefill(ctx, codes, scale, b, x);
        ggml_set_name(y, "y");
        return y;
    }

    void initialize_tensors(ggml_context * ctx) override {
        std::mt19937 random(1);
        std::uniform_int_distribution<int> code(-128, 127);
        std::uniform_real_distribution<float> exponent(-12.0f, -6.0f);
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t != nullptr; t = ggml_get_next_tensor(ctx, t)) {
            if (strcmp(t->name, "codes") == 0) {
                std::vector<int8_t> data(ggml_nelements(t));
                std::generate(data.begin(), data.end(), [&] { return int8_t(code(random)); });
                ggml_backend_tensor_set(t, data.data(), 0, ggml_nbytes(t));
            } else if (strcmp(t->name, "scale") == 0) {
                std::vector<ggml_bf16_t> data(ggml_nelements(t));
                std::generate(data.begin(), data.end(), [&] { return ggml_fp32_to_bf16(exp2f(exponent(random))); });
                ggml_backend_tensor_set(t, data.data(), 0, ggml_nbytes(t));
            } else if (t->type == GGML_TYPE_F32) {
                init_tensor_uniform(t);
            }
        }
    }
};

static void ridgefill_cases_eval(std::vector<std::unique_ptr<test_case>> & cases) {
    for (int64_t n_in : {32, 160, 576, 2560}) { // one short group, two groups, SmolLM2's width, whole groups
        for (int64_t n_out : {1, 33, 576}) {
            for (int64_t n_rows : {1, 7, 33, 130, 512}) {
                cases.emplace_back(new test_ridgefill(n_in, n_out, n_rows, n_rows % 2 == 1, n_out % 2 ? 0 : 8));
                cases.emplace_back(new test_ridgefill(n_in, n_out, n_rows, n_rows % 2 == 1, n_out % 2 ? 0 : 8, true));
            }
        }
    }
}

static void ridgefill_cases_perf(std::vector<std::unique_ptr<test_case>> & cases) {
    for (const auto & [n_in, n_out] : {std::pair{576, 576}, {4096, 4096}, {10240, 2560}}) {
        for (int64_t n_rows : {1, 32, 512, 2048}) {
            cases.emplace_back(new test_ridgefill(n_in, n_out, n_rows));
        }
    }
}
