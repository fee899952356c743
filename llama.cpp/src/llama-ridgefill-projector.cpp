#include "llama-ridgefill-projector.h"

#include "llama-ridgefill-sidefile.h"

#include "ggml-ridgefill.h"
#include "hash/hash.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-vocab.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

namespace {

// sha256 over the token texts, ids ascending, each followed by a zero byte (docs/format.md)
std::string tokenizer_sha256(const llama_vocab & vocab) {
    if (vocab.get_type() == LLAMA_VOCAB_TYPE_NONE) {
        return ""; // no texts, nothing to compare
    }
    std::string all;
    for (uint32_t id = 0; id < vocab.n_tokens(); ++id) {
        all += vocab.token_get_text((llama_token) id);
        all += '\0';
    }
    return hash_sha256_hex(all.data(), all.size());
}

// What a fingerprint says of one of the model's tensors; "none" when there is no such tensor.
std::string fingerprint_of(const llama_model & model, const std::string & name, bool anchor) {
    const ggml_tensor * t = model.get_tensor(name.c_str());
    if (!t || (anchor && t->type != GGML_TYPE_F32)) {
        return "none";
    }
    if (!anchor) {
        return ggml_type_name(t->type);
    }
    std::vector<uint8_t> data(ggml_nbytes(t));
    ggml_backend_tensor_get(t, data.data(), 0, data.size());
    return hash_sha256_hex(data.data(), data.size());
}

// One warning when the model's norms (or encodings) are not those that the maps were made with, or when the file does
// not say; the file still loads.
void check_fingerprints(const llama_model & model, ridgefill_sidefile & file, bool anchor) {
    const std::vector<std::string> & entries = anchor ? file.anchors : file.encodings;
    if (entries.empty()) {
        file.warnings.push_back(
            std::string(anchor ? "anchors" : "encodings") + "-unchecked: " + file.path
            + ": the file has no fingerprints of " + (anchor ? "norms" : "tensor encodings")
        );
    }
    size_t n_other = 0;
    std::string first;
    for (const std::string & entry : entries) {
        const size_t blank = entry.rfind(' ');
        if (blank == std::string::npos) {
            continue;
        }
        const std::string name = entry.substr(0, blank), want = entry.substr(blank + 1);
        const std::string found = fingerprint_of(model, name, anchor);
        const bool same = std::equal(want.begin(), want.end(), found.begin(), found.end(), [](char a, char b) {
            return tolower((unsigned char) a) == tolower((unsigned char) b);
        });
        if (!same && n_other++ == 0) {
            first = ridgefill_quoted(name) + ": " + ridgefill_quoted(want.substr(0, 20)) + " in the file, "
                    + ridgefill_quoted(found.substr(0, 20)) + " in the model";
        }
    }
    if (n_other > 0) {
        file.warnings.push_back(
            std::string(anchor ? "base-anchors" : "base-encodings") + ": " + file.path + ": " + std::to_string(n_other)
            + " of " + std::to_string(entries.size())
            + (anchor ? " norms differ, first " : " tensor encodings differ, first ") + first
        );
    }
}

// A map and a batch of rows as a bulk ubatch has them, to ask a device about.
struct probe {
    ggml_context_ptr ctx{ggml_init({ggml_tensor_overhead() * 8, nullptr, true})};
    ggml_tensor *codes, *scale, *bias, *x;

    probe(int64_t n_in, int64_t n_out)
        : codes(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I8, n_in, n_out)),
          scale(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_BF16, ggml_ridgefill_n_groups(n_in), n_out)),
          bias(ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n_out)),
          x(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_in, 512)) {}
};

// Does the device run the op on these maps?
bool device_runs_op(ggml_backend_dev_t dev, int64_t n_in, int64_t n_out) {
    if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_META) {
        return false; // tensor parallel: it aborts on ops it cannot split
    }
    probe p(n_in, n_out);
    return ggml_backend_dev_supports_op(dev, ggml_ridgefill(p.ctx.get(), p.codes, p.scale, p.bias, p.x));
}

// May its maps share a rounded x? GGML_RIDGEFILL_WHOLE: no, for bisecting.
bool device_shares_x(const llama_model & model, ggml_backend_dev_t dev, int64_t n_in, int64_t n_out) {
    const char * whole = getenv("GGML_RIDGEFILL_WHOLE");
    if (whole && *whole && strcmp(whole, "0") != 0) {
        return false;
    }
    if (ggml_backend_buft_is_host(ggml_backend_dev_buffer_type(dev)) && !model.devices.empty()) {
        return false; // the scheduler may move some products of such maps to a GPU, where a rounded x looks otherwise
    }
    probe p(n_in, n_out);
    ggml_tensor * rounded = ggml_ridgefill_round(p.ctx.get(), p.codes, p.x);
    ggml_tensor * y = ggml_ridgefill_rounded(p.ctx.get(), p.codes, p.scale, p.bias, rounded);
    return ggml_backend_dev_supports_op(dev, rounded) && ggml_backend_dev_supports_op(dev, y);
}

// Can maps of its layers stay in host memory and be copied? Not on the host itself, nor with tensor parallelism.
bool device_copies_maps(ggml_backend_dev_t dev) {
    return ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_META
           && !ggml_backend_buft_is_host(ggml_backend_dev_buffer_type(dev));
}

// Pinned where the device has such memory, so that it can copy from it by itself.
ggml_backend_buffer_type_t host_buffer_type(ggml_backend_dev_t dev) {
    ggml_backend_buffer_type_t buft = ggml_backend_dev_host_buffer_type(dev);
    return buft ? buft : ggml_backend_cpu_buffer_type();
}

struct loader {
    const llama_model & model;
    const ridgefill_sidefile & file;
    llama_ridgefill_projector & proj;
    const llama_ridgefill_placement placement;

    // one context and buffer per buffer type, so that each map lies where its layer runs
    std::map<ggml_backend_buffer_type_t, ggml_context *> ctx_of;

    // maps in host memory, by device: their tensors there and those that the stream will allocate
    struct streamed {
        int n_maps = 0;
        std::vector<ggml_tensor *> host, device;
    };
    std::map<ggml_backend_dev_t, streamed> streamed_of;
    std::map<ggml_tensor *, ggml_tensor *> host_of; // by the tensor that graphs read

    ggml_context * new_ctx() {
        proj.ctxs.emplace_back(ggml_init({ggml_tensor_overhead() * 4 * (file.layers.size() + 1), nullptr, true}));
        return proj.ctxs.back().get();
    }

    ggml_context * ctx_for(ggml_backend_buffer_type_t buft) {
        ggml_context *& ctx = ctx_of[buft];
        ctx = ctx ? ctx : new_ctx();
        return ctx;
    }

    ggml_tensor * host_or_self(ggml_tensor * t) const {
        const auto it = host_of.find(t);
        return it == host_of.end() ? t : it->second;
    }

    void keep_on_host(ggml_backend_dev_t dev, const ridgefill_map & map) {
        streamed & s = streamed_of[dev];
        s.n_maps++;
        for (ggml_tensor * t : {map.codes, map.scale, map.weight}) {
            if (t) {
                host_of[t] = ggml_dup_tensor(ctx_for(host_buffer_type(dev)), t);
                ggml_set_name(host_of[t], t->name);
                s.device.push_back(t);
                s.host.push_back(host_of[t]);
            }
        }
    }

    void create_tensors() {
        ggml_context * ctx_streamed = new_ctx();
        for (const auto & [il, spans] : file.layers) {
            ggml_backend_dev_t dev = model.dev_layer((int) il);
            ggml_context * ctx_dev = ctx_for(ggml_backend_dev_buffer_type(dev));
            const bool copied = placement == LLAMA_RIDGEFILL_PLACEMENT_HOST && device_copies_maps(dev);
            ggml_context * ctx = copied ? ctx_streamed : ctx_dev;
            ridgefill_map map;
            map.il = (int32_t) il;
            const bool native = file.encoding == "i8" && device_runs_op(dev, file.n_in, file.n_out);
            map.shares = native && device_shares_x(model, dev, file.n_in, file.n_out);
            if (native) {
                map.codes = ggml_new_tensor_2d(ctx, GGML_TYPE_I8, file.n_in, file.n_out);
                map.scale = ggml_new_tensor_2d(ctx, GGML_TYPE_BF16, file.n_groups(), file.n_out);
                ggml_format_name(map.codes, "blk.%u.ridgefill.codes", il);
                ggml_format_name(map.scale, "blk.%u.ridgefill.scale", il);
            } else {
                map.weight = ggml_new_tensor_2d(
                    ctx, file.encoding == "bf16" ? GGML_TYPE_BF16 : GGML_TYPE_Q8_0, file.n_in, file.n_out
                );
                ggml_format_name(map.weight, "blk.%u.ridgefill.weight", il);
            }
            map.bias = ggml_new_tensor_1d(ctx_dev, GGML_TYPE_F32, file.n_out);
            ggml_format_name(map.bias, "blk.%u.ridgefill.bias", il);
            if (copied) {
                keep_on_host(dev, map);
            }
            proj.native = native;
            proj.maps.maps.push_back(map);
        }
    }

    void allocate() {
        for (const auto & [buft, ctx] : ctx_of) {
            ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
            if (!buf) {
                throw std::runtime_error(
                    "memory: " + file.path + ": no room for the maps in " + ggml_backend_buft_name(buft)
                );
            }
            // the scheduler runs an op where its weights are
            ggml_backend_buffer_set_usage(buf, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            proj.bufs.emplace_back(buf);
            proj.size += ggml_backend_buffer_get_size(buf);
        }
        for (const auto & [t, host] : host_of) {
            proj.host_size += ggml_nbytes(host);
        }
        proj.size -= proj.host_size;
    }

    void start_streams() {
        for (auto & [dev, s] : streamed_of) {
            ggml_ridgefill_stream * stream = ggml_ridgefill_stream_new(
                dev, s.n_maps, (int) s.host.size() / s.n_maps, s.host.data(), s.device.data()
            );
            if (!stream) {
                throw std::runtime_error(
                    "memory: " + file.path + ": no room on " + ggml_backend_dev_name(dev) + " for "
                    + std::to_string(GGML_RIDGEFILL_SLOTS) + " maps at a time"
                );
            }
            proj.streams.emplace_back(stream);
            proj.size += ggml_ridgefill_stream_size(stream);
            LLAMA_LOG_INFO(
                "%s: %d maps in host memory, copied to %s %s\n", __func__, s.n_maps, ggml_backend_dev_name(dev),
                ggml_ridgefill_stream_overlaps(stream) ? "beside its work" : "while it waits"
            );
        }
    }

    void upload() {
        std::vector<uint8_t> weight, scale, bias, q8_0;
        for (const ridgefill_map & map : proj.maps.maps) {
            const ridgefill_layer_spans & spans = file.layers.at((uint32_t) map.il);
            const std::string blk = "blk." + std::to_string(map.il) + ".ridgefill.";

            read(spans.bias, blk + "bias", bias);
            ggml_backend_tensor_set(map.bias, bias.data(), 0, bias.size());

            const bool i8 = file.encoding == "i8";
            read(spans.weight, blk + (i8 ? "codes" : "weight"), weight);
            if (!i8) {
                ggml_backend_tensor_set(host_or_self(map.weight), weight.data(), 0, weight.size());
                continue;
            }
            read(spans.scale, blk + "scale", scale);
            if (map.codes) {
                ggml_backend_tensor_set(host_or_self(map.codes), weight.data(), 0, weight.size());
                ggml_backend_tensor_set(host_or_self(map.scale), scale.data(), 0, scale.size());
                continue;
            }
            q8_0.resize(ggml_nbytes(map.weight));
            if (ggml_ridgefill_to_q8_0(
                    (const int8_t *) weight.data(), (const ggml_bf16_t *) scale.data(), file.n_in, file.n_out,
                    q8_0.data()
                )
                > 0) {
                throw ridgefill_sidefile_error(
                    "scale-value", file.path,
                    blk + "scale: a scale below 2^-17 has no f16 value, which the portable path needs"
                );
            }
            ggml_backend_tensor_set(host_or_self(map.weight), q8_0.data(), 0, q8_0.size());
        }
    }

    // Key heads of recurrent layers whose value heads llama.cpp keeps tiled; published states have them grouped.
    uint32_t n_tiled_key_heads() const {
        const auto & hparams = model.hparams;
        const bool grouped = model.arch == LLM_ARCH_QWEN3NEXT; // stays as it was trained
        return grouped ? 0 : hparams.ssm_n_group;
    }

    void read_states() {
        std::vector<uint8_t> data;
        for (const auto & [il, span] : file.states) {
            read(span, "blk." + std::to_string(il) + ".ridgefill.state", data);
            std::vector<float> & state = proj.states[(int32_t) il];
            state.resize(data.size() / sizeof(float));
            memcpy(state.data(), data.data(), data.size());
            const uint32_t n_heads = model.hparams.ssm_dt_rank, n_key_heads = n_tiled_key_heads();
            if (file.head_order == "grouped" && n_key_heads > 0 && n_heads > n_key_heads) {
                state = ridgefill_tiled(state, n_heads, n_key_heads);
            }
        }
    }

    void read(const ridgefill_tensor_span & span, const std::string & what, std::vector<uint8_t> & dst) const {
        dst.resize(span.size);
        ridgefill_sidefile_read_span(file, span, what, dst.data());
    }
};

} // namespace

ggml_tensor * ridgefill_map::build(ggml_context * ctx, ggml_tensor * x) const {
    if (codes) {
        return ggml_ridgefill(ctx, codes, scale, bias, x);
    }
    return ggml_add(ctx, ggml_mul_mat(ctx, weight, x), bias);
}

ggml_tensor * ridgefill_map::build(ridgefill_source & source) const {
    if (!shares) {
        return build(source.ctx, source.x);
    }
    ggml_tensor *& rounded = source.rounded[ggml_backend_buffer_get_type(codes->buffer)];
    if (!rounded) {
        rounded = ggml_ridgefill_round(source.ctx, codes, source.x);
        ggml_format_name(rounded, "ridgefill-x-%d", il);
    }
    return ggml_ridgefill_rounded(source.ctx, codes, scale, bias, rounded);
}

ridgefill_base ridgefill_base_of(const llama_model & model) {
    const auto & hparams = model.hparams;
    // streams of a hyper-connection model travel side by side
    const uint32_t n_streams = std::max<uint32_t>(1, hparams.dsv4_hc_mult);

    ridgefill_base base;
    base.arch = model.arch_name();
    base.name = model.name;
    base.n_layer = hparams.n_layer();
    base.n_embd = hparams.n_embd;
    base.n_vocab = model.vocab.n_tokens();
    base.source_width = hparams.n_embd * n_streams;
    base.block_width = hparams.n_embd;
    base.tokenizer_sha256 = tokenizer_sha256(model.vocab);
    for (uint32_t il = 0; il < base.n_layer; ++il) {
        const bool recurrent = hparams.is_recr(il);
        base.layer_kinds += recurrent ? 'r' : 'a';
        if (recurrent) {
            base.state_size = hparams.n_embd_s();
        }
        if (hparams.ple_n_heads > 0 && hparams.is_ple(il)) {
            base.min_split = il + 1;
        }
    }
    if (hparams.ssm_n_group > 0 && hparams.ssm_dt_rank > 0 && base.state_size > 0) {
        base.state_heads = hparams.ssm_dt_rank;
    }
    return base;
}

llama_ridgefill_projector *
ridgefill_projector_load(const llama_model & model, const std::string & path, llama_ridgefill_placement placement) {
    const ridgefill_base base = ridgefill_base_of(model);
    ridgefill_sidefile file = ridgefill_sidefile_read(path, base);
    check_fingerprints(model, file, true);
    check_fingerprints(model, file, false);
    for (const std::string & w : file.warnings) {
        LLAMA_LOG_WARN("%s: %s\n", __func__, w.c_str());
    }

    auto proj = std::make_unique<llama_ridgefill_projector>();
    proj->model = &model;
    proj->name = file.name;
    proj->identity = ridgefill_sidefile_identity(path);
    proj->warnings = file.warnings;
    proj->split = (int32_t) file.split;
    proj->target =
        file.target == "block_input" ? LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT : LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
    proj->maps.n_in = (int32_t) file.n_in;
    proj->maps.n_out = (int32_t) file.n_out;

    loader ld{model, file, *proj, placement, {}, {}, {}};
    ld.create_tensors();
    ld.allocate();
    ld.upload();
    ld.start_streams();
    if (file.score.size > 0) {
        proj->score.resize(file.score.size / sizeof(float));
        ridgefill_sidefile_read_raw(file, file.score, "ridgefill.score", proj->score.data());
    }
    ld.read_states();
    proj->tile = base.layer_kinds.find('r') != std::string::npos ? llama_ridgefill_projector::recurrent_tile : 1;

    LLAMA_LOG_INFO(
        "%s: %s: %zu maps [%u -> %u], %zu states, split %u, %s, %.2f MiB, %s\n", __func__, proj->name.c_str(),
        proj->maps.maps.size(), file.n_in, file.n_out, proj->states.size(), file.split, file.target.c_str(),
        proj->size / 1024.0 / 1024.0, proj->native ? "ridgefill op" : "portable path"
    );
    return proj.release();
}
