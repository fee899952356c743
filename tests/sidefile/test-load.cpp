// Loading a side file for a model: what the maps compute, what the loader refuses and warns of, and that it serves.

#include "core/harness.h"
#include "core/tiny.h"
#include "sidefile/toy-file.h"

#include <cstring>
#include <filesystem>
#include <random>

namespace {

const std::string PATH = "test-load.tmp";
constexpr toy::dims DIMS = {128, 128, 6, 3, 256}; // of the tiny llama

std::string log_text;

llama_ridgefill_projector * load(const llama_model * model, const toy::file & f, std::string * why = nullptr) {
    toy::write(PATH, f.pack());
    char err[512] = "";
    log_text.clear();
    llama_ridgefill_projector * p =
        llama_ridgefill_load(model, PATH.c_str(), LLAMA_RIDGEFILL_PLACEMENT_DEVICE, err, sizeof(err));
    if (why) {
        *why = err;
    }
    return p;
}

// y = map(x) on the CPU
std::vector<float> apply(const ridgefill_map & map, const std::vector<float> & x, int64_t n_in) {
    ggml_backend_ptr backend{ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)};
    ggml_context_ptr ctx{ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})};
    ggml_tensor * in = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_in, (int64_t) x.size() / n_in);
    ggml_set_input(in);
    ggml_tensor * y = map.build(ctx.get(), in);
    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(gf, y);
    ggml_backend_buffer_ptr buf{ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get())};
    ggml_backend_tensor_set(in, x.data(), 0, ggml_nbytes(in));
    GGML_ASSERT(ggml_backend_graph_compute(backend.get(), gf) == GGML_STATUS_SUCCESS);
    std::vector<float> res((size_t) ggml_nelements(y));
    ggml_backend_tensor_get(y, res.data(), 0, ggml_nbytes(y));
    return res;
}

// The published meaning, from random codes: each encoding's map against a float64 sum.
void test_values(const llama_model * model, const std::string & encoding) {
    check::begin("values, " + encoding);
    std::mt19937 rng(7);
    const size_t n_in = DIMS.n_in, n_out = DIMS.n_out, n_rows = 5;
    std::vector<double> w(n_in * n_out), b(n_out);
    toy::file f = toy::good(encoding, DIMS);
    for (const uint32_t il : {4u, 5u}) { // the last map's values are compared
        const std::string p = "blk." + std::to_string(il) + ".ridgefill.";
        toy::bytes codes, scale, weight, bias;
        for (size_t o = 0; o < n_out; ++o) {
            const uint16_t s = (uint16_t) (0x3c00 + rng() % 64); // bf16, near 1/128
            uint32_t bits = (uint32_t) s << 16;
            float scale_f;
            memcpy(&scale_f, &bits, sizeof(scale_f));
            const ggml_fp16_t d = ggml_fp32_to_fp16(scale_f);
            scale += toy::raw(s);
            for (size_t i = 0; i < n_in; ++i) {
                const int8_t c = (int8_t) ((int) (rng() % 255) - 127);
                const ggml_bf16_t h = ggml_fp32_to_bf16((float) c * scale_f);
                w[o * n_in + i] = encoding == "bf16" ? ggml_bf16_to_fp32(h) : (double) c * scale_f;
                codes += (char) c;
                weight += encoding == "bf16" ? toy::raw(h.bits) : (i % 32 ? toy::bytes() : toy::raw(d)) + (char) c;
            }
            const float v = (float) (rng() % 100) / 50.0f;
            b[o] = v;
            bias += toy::raw(v);
        }
        f.named(p + "bias").data = bias;
        if (encoding == "i8") {
            f.named(p + "codes").data = codes;
            f.named(p + "scale").data = scale;
        } else {
            f.named(p + "weight").data = weight;
        }
    }
    std::string why;
    llama_ridgefill_projector * p = load(model, f, &why);
    if (!CHECK(p != nullptr, "%s", why.c_str())) {
        return;
    }
    CHECK(p->native == (encoding == "i8" && p->maps.maps[0].codes != nullptr));
    std::vector<float> x(n_in * n_rows);
    for (float & v : x) {
        v = (float) (int) (rng() % 2001) / 1000.0f - 1.0f;
    }
    const std::vector<float> y = apply(p->maps.maps.back(), x, (int64_t) n_in);
    double err = 0.0, size = 0.0;
    for (size_t r = 0; r < n_rows; ++r) {
        for (size_t o = 0; o < n_out; ++o) {
            double want = b[o];
            for (size_t i = 0; i < n_in; ++i) {
                want += w[o * n_in + i] * x[r * n_in + i];
            }
            err += (want - y[r * n_out + o]) * (want - y[r * n_out + o]);
            size += want * want;
        }
    }
    // 8-bit activations: about 1 part in 200 per value
    CHECK(err / size < 1e-4, "normalised error %g", err / size);
    llama_ridgefill_free(p);
}

void test_properties(const llama_model * model) {
    check::begin("properties");
    std::string why;
    toy::file f = toy::good("i8", DIMS);
    llama_ridgefill_projector * p = load(model, f, &why);
    if (!CHECK(p != nullptr, "%s", why.c_str())) {
        return;
    }
    CHECK(llama_ridgefill_split(p) == 3 && llama_ridgefill_n_maps(p) == 2);
    CHECK(llama_ridgefill_n_states(p) == 0 && p->tile == 1);
    CHECK(llama_ridgefill_target_of(p) == LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT);
    CHECK(llama_ridgefill_size(p) >= 2 * 128 * 128, "%zu bytes", llama_ridgefill_size(p));
    CHECK(llama_ridgefill_identity(p) == ridgefill_sidefile_identity(PATH));
    CHECK(strcmp(llama_ridgefill_name(p), "toy") == 0);
    CHECK(p->maps.maps[0].il == 4 && p->maps.maps[1].il == 5 && p->maps.n_in == 128 && p->maps.n_out == 128);
    llama_ridgefill_free(p);

    f.set("ridgefill.target", "layer_input");
    p = load(model, f, &why);
    CHECK(p && llama_ridgefill_target_of(p) == LLAMA_RIDGEFILL_TARGET_LAYER_INPUT, "%s", why.c_str());
    llama_ridgefill_free(p);
}

void test_fingerprints(const llama_model * model) {
    check::begin("fingerprints");
    const char * name = "blk.2.attn_norm.weight";
    const ggml_tensor * norm = model->get_tensor(name);
    toy::bytes data(ggml_nbytes(norm), '\0');
    ggml_backend_tensor_get(norm, &data[0], 0, data.size());
    toy::write(PATH, data);
    const std::string anchor = std::string(name) + " " + ridgefill_sidefile_identity(PATH);

    toy::file f = toy::good("i8", DIMS);
    f.set("ridgefill.base.name", model->name);
    f.set("ridgefill.base.anchors", toy::ARR, toy::texts({anchor}));
    f.set("ridgefill.base.encodings", toy::ARR, toy::texts({"blk.3.attn_q.weight F32", "blk.3.attn_k.weight f32"}));
    llama_ridgefill_free(load(model, f));
    CHECK(log_text.find("base-") == std::string::npos, "%s", log_text.c_str());

    f.set("ridgefill.base.anchors", toy::ARR, toy::texts({anchor, "blk.3.attn_norm.weight " + std::string(64, '0')}));
    llama_ridgefill_projector * p = load(model, f);
    CHECK(
        p && log_text.find("base-anchors: " + PATH + ": 1 of 2 norms differ") != std::string::npos, "%s",
        log_text.c_str()
    );
    llama_ridgefill_free(p);

    f.set(
        "ridgefill.base.encodings", toy::ARR, toy::texts({"blk.3.attn_q.weight Q8_0", "x", "blk.9.attn_q.weight F32"})
    );
    p = load(model, f);
    CHECK(
        p && log_text.find("base-encodings: " + PATH + ": 2 of 3 tensor encodings differ") != std::string::npos, "%s",
        log_text.c_str()
    );
    llama_ridgefill_free(p);
}

void test_refusals(const llama_model * model) {
    const auto refused = [&](const char * code, const std::function<void(toy::file &)> & change) {
        check::begin(std::string("refused: ") + code);
        toy::file f = toy::good("i8", DIMS);
        change(f);
        std::string why;
        CHECK(
            load(model, f, &why) == nullptr && why.rfind(std::string(code) + ": " + PATH, 0) == 0, "'%s'", why.c_str()
        );
    };
    refused("base-architecture", [](toy::file & f) { f.set("ridgefill.base.architecture", "gemma3"); });
    refused("base-vocab", [](toy::file & f) { f.set("ridgefill.base.vocab_size", 255); });
    refused("base-layers", [](toy::file & f) { f.set("ridgefill.base.block_count", 7); });
    refused("layer-kinds", [](toy::file & f) { f.set("ridgefill.base.layer_kinds", "aaaaar"); });
    refused("source-width", [](toy::file & f) { f.set("ridgefill.source_width", 256); });
    // a value of the last tensor: maps were already on the device
    refused("bias-value", [](toy::file & f) { f.tensors.back().data.replace(4, 4, toy::raw(NAN)); });

    check::begin("short error buffers");
    toy::write(PATH, "no side file");
    for (const size_t n : {0, 1, 5, 20}) {
        char err[32];
        memset(err, '#', sizeof(err));
        CHECK(llama_ridgefill_load(model, PATH.c_str(), LLAMA_RIDGEFILL_PLACEMENT_DEVICE, err, n) == nullptr);
        CHECK(n == 0 ? err[0] == '#' : strlen(err) == n - 1 && err[n] == '#', "%zu", n);
    }
    CHECK(llama_ridgefill_load(model, PATH.c_str(), LLAMA_RIDGEFILL_PLACEMENT_DEVICE, nullptr, 0) == nullptr);
    CHECK(llama_ridgefill_load(model, "", LLAMA_RIDGEFILL_PLACEMENT_DEVICE, nullptr, 0) == nullptr);
}

// What memory fitting counts, and the words of --ridgefill-placement; host memory on a device:
// tests/server/test_rpc.py.
void test_placement(const llama_model * model) {
    for (const char * encoding : {"i8", "q8_0", "bf16"}) {
        check::begin(std::string("placement, ") + encoding);
        llama_ridgefill_projector * p = load(model, toy::good(encoding, DIMS));
        const size_t size = llama_ridgefill_size(p);
        const size_t counted = llama_ridgefill_file_size(PATH.c_str(), LLAMA_RIDGEFILL_PLACEMENT_DEVICE);
        CHECK(counted > size * 9 / 10 && counted < size * 12 / 10, "%zu of %zu", counted, size);
        // two maps: no more than there are slots
        CHECK(llama_ridgefill_file_size(PATH.c_str(), LLAMA_RIDGEFILL_PLACEMENT_HOST) == counted);
        llama_ridgefill_free(p);

        // the layers are on the CPU, whose memory is the host's
        char err[512];
        p = llama_ridgefill_load(model, PATH.c_str(), LLAMA_RIDGEFILL_PLACEMENT_HOST, err, sizeof(err));
        CHECK(p && llama_ridgefill_host_size(p) == 0 && llama_ridgefill_size(p) == size);
        llama_ridgefill_free(p);
    }
    CHECK(llama_ridgefill_file_size("absent", LLAMA_RIDGEFILL_PLACEMENT_DEVICE) == 0);
    llama_ridgefill_placement placement = LLAMA_RIDGEFILL_PLACEMENT_HOST;
    CHECK(!llama_ridgefill_placement_parse("gpu", &placement) && placement == LLAMA_RIDGEFILL_PLACEMENT_HOST);
    CHECK(llama_ridgefill_placement_parse("device", &placement) && placement == LLAMA_RIDGEFILL_PLACEMENT_DEVICE);
}

// States of a model whose value heads llama.cpp keeps tiled: grouped ones are put in order, tiled ones stay.
void test_states(const llama_model * hybrid) {
    toy::dims d = DIMS;
    d.n_layer = 8;
    toy::file f = toy::good("i8", d);
    f.set("ridgefill.base.architecture", "qwen35").set("ridgefill.base.layer_kinds", "rrrarrra");
    const size_t size = 64 * 64;
    toy::bytes data;
    for (float head = 0; head < 4; ++head) { // each head holds its number
        for (size_t i = 0; i < size; ++i) {
            data += toy::raw(head);
        }
    }
    for (const int il : {4, 6}) {
        f.add({"blk." + std::to_string(il) + ".ridgefill.state", {64, 64, 4}, GGML_TYPE_F32, data});
    }
    for (const bool grouped : {true, false}) {
        check::begin(grouped ? "states, grouped" : "states, tiled");
        f.set("ridgefill.state.head_order", grouped ? "grouped" : "tiled");
        std::string why;
        llama_ridgefill_projector * p = load(hybrid, f, &why);
        if (!CHECK(p != nullptr, "%s", why.c_str())) {
            return;
        }
        CHECK(llama_ridgefill_n_states(p) == 2 && p->tile == 64);
        // two key heads of two value heads each: grouped 0 1 | 2 3 is tiled 0 2 | 1 3
        const float want[] = {0, grouped ? 2.0f : 1.0f, grouped ? 1.0f : 2.0f, 3};
        for (const auto & [il, state] : p->states) {
            for (size_t i = 0; i < state.size(); ++i) {
                CHECK(state[i] == want[i / size], "layer %d value %zu: %g", il, i, state[i]);
            }
        }
        llama_ridgefill_free(p);
    }
    check::begin("states of another shape");
    f.tensors.back().ne = {64, 32, 4};
    f.tensors.back().data.resize(32 * 64 * 4 * 4);
    std::string why;
    CHECK(load(hybrid, f, &why) == nullptr && why.rfind("tensor-shape: ", 0) == 0, "'%s'", why.c_str());
}

// A loaded file fills; its identity and counts are what a caller sees.
void test_serves(llama_model * model) {
    for (const char * target : {"layer_input", "block_input"}) {
        check::begin(std::string("serves, ") + target);
        toy::file f = toy::good("i8", DIMS);
        f.set("ridgefill.target", target);
        for (toy::tensor & t : f.tensors) { // small values: a stream of ones is no stream
            if (t.name.find("scale") != std::string::npos) {
                t.data = toy::repeat(toy::raw((uint16_t) 0x3c00), t.data.size() / 2);
            }
        }
        llama_ridgefill_projector * p = load(model, f);
        core::prompt prompt;
        const core::steps all = prompt.make(model);
        llama_context_ptr ctx = core::make_context(model, core::setup());
        const std::vector<float> exact = core::run(ctx.get(), all);
        char err[256] = "";
        if (!CHECK(
                p && llama_ridgefill_attach(ctx.get(), p, prompt.params(LLAMA_RIDGEFILL_MODE_SPEED), err, sizeof(err)),
                "%s", err
            )) {
            continue;
        }
        CHECK(
            llama_ridgefill_attached(ctx.get()) == p && llama_ridgefill_get_params(ctx.get()).n_tail == prompt.n_tail
        );
        llama_ridgefill_prompt(ctx.get(), 0, 0, prompt.n_prompt(), nullptr);
        const std::vector<float> filled = core::run(ctx.get(), all);
        const double d = core::difference(exact, filled);
        CHECK(d > 1e-3 && d < 10, "difference %g", d);
        CHECK(llama_ridgefill_get_counts(ctx.get(), 0).n_filled == prompt.n_bulk);
        ctx.reset();
        llama_ridgefill_free(p);
    }
    check::begin("another model's projector");
    llama_model_ptr other = core::make_tiny_llama(6, 2);
    llama_ridgefill_projector * p = load(other.get(), toy::good("i8", DIMS));
    llama_context_ptr ctx = core::make_context(model, core::setup());
    char err[256] = "";
    CHECK(
        p && !llama_ridgefill_attach(ctx.get(), p, llama_ridgefill_default_params(), err, sizeof(err))
            && strstr(err, "another model"),
        "%s", err
    );
    CHECK(llama_ridgefill_attached(ctx.get()) == nullptr);
    llama_ridgefill_free(p);
}

} // namespace

int main() {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_WARN) {
                log_text += text;
            }
        },
        nullptr
    );
    llama_backend_init();
    {
        llama_model_ptr model = core::make_tiny_llama();
        for (const char * encoding : {"i8", "q8_0", "bf16"}) {
            test_values(model.get(), encoding);
        }
        test_properties(model.get());
        test_fingerprints(model.get());
        test_refusals(model.get());
        test_placement(model.get());
        test_serves(model.get());
        test_states(core::make_tiny_hybrid().get());
    }
    std::filesystem::remove(PATH);
    llama_backend_free();
    return check::finish();
}
