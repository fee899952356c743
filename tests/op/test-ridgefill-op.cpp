// The op on the CPU backend, each path (GGML_RIDGEFILL_CPU) in a process of its own:
//  1. NMSE < 5e-4 against the float64 contract (512 elements or more), and every element of a poisoned result written
//  2. near equality with the W8A8 arithmetic in float64 (see max_rounds)
//  3. bit-equal to the plain path, for 1 to 4 threads, and with x rounded by an op of its own
//  4. the portable Q8_0 form dequantises to the same values
//  5. a NaN or an infinity in x shows in its row and nowhere else
//  6. negative controls: a wrong scale, an unwritten element and a wrong code are found
//
//   ridgefill-test-ridgefill-op            all paths that this processor has
//   ridgefill-test-ridgefill-op --path P   one of them, or "default"
// RIDGEFILL_TEST_SEEDS (default 2) repeats the small cases with that many seeds.

#include "op-case.h"

#include <cstdlib>

#ifdef _WIN32
#define setenv(name, value, overwrite) _putenv_s(name, value)
#endif

static int n_failed = 0;

static void check(bool ok, const std::string & what) {
    if (!ok) {
        printf("FAIL %s\n", what.c_str());
        n_failed++;
    }
}

static std::vector<op_case> make_cases() {
    std::vector<op_case> cases;
    const char * seeds = getenv("RIDGEFILL_TEST_SEEDS");
    for (int seed = 1; seed <= (seeds ? atoi(seeds) : 2); seed++) {
        for (int64_t n_in : {32, 64, 96, 128, 160, 288, 576}) {
            for (int64_t n_out : {1, 7, 33, 64, 130}) {
                for (int64_t n_rows : {1, 2, 3, 6, 8, 15, 17, 33, 64, 77}) {
                    const auto values = op_values((n_in / 32 + n_out + n_rows + seed) % OP_VALUES_COUNT);
                    cases.push_back(
                        {n_in, n_out, n_rows, values, (n_out + n_rows) % 3 != 0, n_rows % 5 ? 0 : 24, uint32_t(seed)}
                    );
                }
            }
        }
    }
    for (op_values values : {OP_VALUES_NORMAL, OP_VALUES_OUTLIERS, OP_VALUES_ZEROS, OP_VALUES_EXTREME}) {
        cases.push_back({576, 576, 512, values});
        cases.push_back({2560, 321, 65, values});
        cases.push_back({4096 + 32, 96, 130, values});
    }
    cases.push_back({576, 192, 4096});
    cases.push_back({640, 640, 1029, OP_VALUES_OUTLIERS, true, 8});
    cases.push_back({10240, 160, 48});
    return cases;
}

// The paths add at most one rounding per group and one for the product of scales, each at most 2^-24 of a partial sum.
static double max_rounds(const op_case & c) {
    return 2.0 * double(c.n_groups()) + 2.0;
}

static bool same_bits(const std::vector<float> & a, const std::vector<float> & b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Functions of the CPU backend, also when it is a library of its own.
template <typename F>
static F cpu_function(ggml_backend_t backend, const char * name) {
    return (F) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), name);
}

static void check_values(ggml_backend_t backend, const op_case & c, const std::vector<int> & threads) {
    const auto set_n_threads = cpu_function<ggml_backend_set_n_threads_t>(backend, "ggml_backend_set_n_threads");
    const auto set_use_ref = cpu_function<void (*)(ggml_backend_t, bool)>(backend, "ggml_backend_cpu_set_use_ref");
    const op_data d = op_make_data(c);

    set_n_threads(backend, 1);
    set_use_ref(backend, true);
    const std::vector<float> plain = op_run(backend, c, d);
    check(same_bits(op_run(backend, c, d, true), plain), "plain path, x rounded apart: other bits: " + c.vars());
    set_use_ref(backend, false);

    bool first = true;
    for (int n : threads) {
        set_n_threads(backend, n);
        const std::vector<float> y = op_run(backend, c, d);
        check(same_bits(y, plain), "bits differ from the plain path: " + c.vars() + ",threads=" + std::to_string(n));
        const bool apart_ok = same_bits(op_run(backend, c, d, true), plain);
        check(apart_ok, "x rounded apart: other bits: " + c.vars() + ",threads=" + std::to_string(n));
        if (first) {
            const op_errors e = op_compare(c, d, y);
            check(e.n_unset == 0, std::to_string(e.n_unset) + " elements not written: " + c.vars());
            check(e.nmse_ok(), "nmse " + std::to_string(e.nmse) + ": " + c.vars());
            check(e.rounds <= max_rounds(c), std::to_string(e.rounds) + " roundings from W8A8: " + c.vars());
            first = false;
        }
    }
}

static void check_not_finite(ggml_backend_t backend) {
    const op_case c = {288, 40, 19};
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
        op_data d = op_make_data(c);
        const std::vector<float> good = op_run(backend, c, d);
        d.x[7 * c.n_in + 130] = bad;
        const std::vector<float> y = op_run(backend, c, d);
        for (int64_t r = 0; r < c.n_rows; r++) {
            for (int64_t o = 0; o < c.n_out; o++) {
                const float v = y[r * c.n_out + o];
                check(
                    r == 7 ? std::isnan(v) : v == good[r * c.n_out + o], "a bad input shows in row " + std::to_string(r)
                );
            }
        }
    }
    // too small for a reciprocal: zero, not garbage
    op_data d = op_make_data(c);
    std::fill(d.x.begin(), d.x.end(), 1e-40f);
    const std::vector<float> y = op_run(backend, c, d);
    for (int64_t o = 0; o < c.n_out; o++) {
        check(y[o] == d.bias[o], "denormal inputs count as zero");
    }
}

static void check_portable() {
    for (int64_t n_in : {32, 128, 160, 576}) {
        const op_case c = {n_in, 37, 1};
        op_data d = op_make_data(c);
        std::vector<char> rows(ggml_row_size(GGML_TYPE_Q8_0, n_in) * c.n_out);
        std::vector<float> values(n_in);
        const int64_t n_inexact = ggml_ridgefill_to_q8_0(d.codes.data(), d.scale.data(), n_in, c.n_out, rows.data());
        check(n_inexact == 0, "all scales fit f16");
        for (int64_t o = 0; o < c.n_out; o++) {
            const char * row = rows.data() + o * ggml_row_size(GGML_TYPE_Q8_0, n_in);
            ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(row, values.data(), n_in);
            for (int64_t i = 0; i < n_in; i++) {
                const float scale = ggml_bf16_to_fp32(d.scale[o * c.n_groups() + i / GGML_RIDGEFILL_GROUP]);
                check(values[i] == scale * d.codes[o * n_in + i], "Q8_0 holds the same value");
            }
        }
        d.scale[0] = ggml_fp32_to_bf16(std::ldexp(1.0f + 1.0f / 128, -18)); // below 2^-17 f16 lacks bits
        d.scale[1] = ggml_fp32_to_bf16(1e5f);
        check(
            ggml_ridgefill_to_q8_0(d.codes.data(), d.scale.data(), n_in, c.n_out, rows.data()) == 2,
            "lost scales are counted"
        );
    }
}

static void check_refusals(ggml_backend_t backend) {
    ggml_backend_dev_t dev = ggml_backend_get_device(backend);
    const op_case c = {160, 8, 4};
    op_graph g = op_make_graph(c);
    check(ggml_backend_dev_supports_op(dev, g.y), "a good op is supported");

    const auto refused = [&](const char * what, auto && spoil) {
        op_graph bad = op_make_graph(c);
        spoil(bad);
        check(!ggml_backend_dev_supports_op(dev, bad.y), std::string("refused: ") + what);
    };
    refused("x of another type", [](op_graph & b) { b.x_base->type = GGML_TYPE_F16; });
    refused("x not contiguous", [](op_graph & b) { b.x_base->nb[0] = 8; });
    refused("x of another width", [](op_graph & b) { b.x_base->ne[0] = 128; });
    refused("codes of another type", [](op_graph & b) { b.codes->type = GGML_TYPE_I16; });
    refused("codes with gaps", [](op_graph & b) { b.codes->nb[1] += 32; });
    refused("scale of another type", [](op_graph & b) { b.scale->type = GGML_TYPE_F16; });
    refused("scale of another shape", [](op_graph & b) { b.scale->ne[0] = 1; });
    refused("bias of another length", [](op_graph & b) { b.bias->ne[0] = 7; });

    op_graph apart = op_make_graph(c, true);
    ggml_tensor * rounded = apart.y->src[3];
    check(ggml_backend_dev_supports_op(dev, rounded), "rounding apart is supported");
    check(ggml_backend_dev_supports_op(dev, apart.y), "a rounded x is supported");
    check(!ggml_ridgefill_is_valid(rounded) && !ggml_ridgefill_is_valid(apart.y), "they are not the whole op");
    rounded->ne[0] -= 8;
    check(!ggml_backend_dev_supports_op(dev, apart.y), "refused: a rounded x without room");
}

// Each spoiled copy must be caught by the check that the real results pass.
static void check_controls(ggml_backend_t backend) {
    const op_case c = {288, 40, 19};
    const op_data d = op_make_data(c);
    const std::vector<float> y = op_run(backend, c, d);

    op_data wrong = d;
    for (auto & s : wrong.scale) {
        s = ggml_fp32_to_bf16(1.05f * ggml_bf16_to_fp32(s));
    }
    check(!op_compare(c, wrong, y).nmse_ok(), "control: all scales 5 % wrong");
    wrong = d;
    wrong.scale[50] = ggml_fp32_to_bf16(2.0f * ggml_bf16_to_fp32(wrong.scale[50]));
    check(op_compare(c, wrong, y).rounds > max_rounds(c), "control: one scale wrong");
    wrong = d;
    wrong.codes[999] = int8_t(wrong.codes[999] > 0 ? wrong.codes[999] - 9 : wrong.codes[999] + 9);
    check(op_compare(c, wrong, y).rounds > max_rounds(c), "control: one code wrong");
    std::vector<float> unset = y;
    unset.back() = std::numeric_limits<float>::quiet_NaN();
    check(op_compare(c, d, unset).n_unset == 1, "control: one element not written");
}

static int run_path(const char * path) {
    if (strcmp(path, "default") != 0) {
        setenv("GGML_RIDGEFILL_CPU", path, 1);
    }
    ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!backend) {
        printf("FAIL no CPU backend\n");
        return 1;
    }
    const auto path_in_use = cpu_function<const char * (*) ()>(backend.get(), "ggml_cpu_ridgefill_path");
    check(path_in_use != nullptr, "the CPU backend names its path");
    const char * used = path_in_use ? path_in_use() : "?";
    if (strcmp(path, "default") != 0 && strcmp(path, used) != 0) {
        printf("%-11s not on this processor\n", path);
        return n_failed != 0;
    }

    int n_cases = 0;
    for (const op_case & c : make_cases()) {
        // several threads on a busy machine wait for each other in every graph: not for every small case
        const bool large = c.n_in * c.n_out * c.n_rows > 1000000;
        const bool many = large || n_cases % 11 == 0;
        check_values(backend.get(), c, many ? std::vector<int>{1, 2, large ? 3 : 4} : std::vector<int>{1});
        n_cases++;
    }
    check_not_finite(backend.get());
    check_portable();
    check_refusals(backend.get());
    check_controls(backend.get());
    printf("%-11s %d cases, %d failures\n", used, n_cases, n_failed);
    return n_failed != 0;
}

int main(int argc, char ** argv) {
    if (argc == 3 && strcmp(argv[1], "--path") == 0) {
        return run_path(argv[2]);
    }
    if (argc != 1) {
        fprintf(stderr, "usage: %s [--path default|scalar|avx2|avxvnni|avx512vnni|amx|neon]\n", argv[0]);
        return 2;
    }
    int n_bad = 0;
    for (const char * path : {"scalar", "avx2", "avxvnni", "avx512vnni", "amx", "neon"}) {
        fflush(stdout);
        const std::string command = std::string("\"") + argv[0] + "\" --path " + path;
        n_bad += system(command.c_str()) != 0;
    }
    printf("%s\n", n_bad == 0 ? "OK" : "FAIL");
    return n_bad != 0;
}
