#include "llama-ridgefill-sidefile.h"

extern "C" {
#include "hash/sha256/sha256.h"
}

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

namespace {

constexpr uint64_t MAX_LAYERS = 512;
constexpr uint64_t MAX_WIDTH = 1u << 20;
constexpr uint64_t WIDTH_STEP = 32;

const char * const SCORE = "ridgefill.score";
const char * const FINAL_WEIGHT = "ridgefill.final.weight";
const char * const FINAL_BIAS = "ridgefill.final.bias";
const char * const HEAD_ORDER = "ridgefill.state.head_order";

using file_ptr = std::unique_ptr<FILE, int (*)(FILE *)>;
using value = ridgefill_gguf_value;
using shape = std::vector<uint64_t>;

file_ptr open_file(const std::string & path) {
    return file_ptr(fopen(path.c_str(), "rb"), fclose);
}

std::string shape_text(const shape & ne) {
    std::string res = "[";
    for (const uint64_t n : ne) {
        res += (res.size() > 1 ? ", " : "") + std::to_string(n);
    }
    return res + "]";
}

// Keys that nobody needs here, but whose kind is given.
const struct {
    const char * key;
    value::kind_t kind;
} OPTIONAL_KEYS[] = {
    {"general.name", value::STRING},
    {"general.author", value::STRING},
    {"general.license", value::STRING},
    {"general.doi", value::STRING},
    {"ridgefill.fit.rows", value::INT},
    {"ridgefill.fit.head", value::INT},
    {"ridgefill.fit.layers", value::INTS},
    {"ridgefill.fit.lambda", value::FLOATS},
    {"ridgefill.fit.cosine", value::FLOATS},
    {"ridgefill.fit.r2", value::FLOATS},
    {"ridgefill.fit.condition", value::FLOATS},
    {"ridgefill.fit.text_sha256", value::STRING},
    {"ridgefill.fit.context", value::INT},
    {"ridgefill.fit.stride", value::INT},
    {"ridgefill.fit.prior", value::STRING},
    {"ridgefill.fit.held_rows", value::INT},
    {"ridgefill.fit.dropped_rows", value::INT},
    {"ridgefill.fit.chat_share", value::FLOAT},
    {"ridgefill.fit.weights", value::STRING},
    {"ridgefill.base.anchors", value::STRINGS},
    {"ridgefill.base.encodings", value::STRINGS},
    {HEAD_ORDER, value::STRING},
    {"ridgefill.manifest", value::STRING},
};

// "blk.<L>.ridgefill.<part>", L without leading zeros
bool parse_name(const std::string & name, uint32_t & il, std::string & part) {
    unsigned l = 0;
    char rest[64] = {};
    if (sscanf(name.c_str(), "blk.%6u.ridgefill.%63s", &l, rest) != 2
        || name != "blk." + std::to_string(l) + ".ridgefill." + rest) {
        return false;
    }
    il = l;
    part = rest;
    return true;
}

class reader {
  public:
    reader(const std::string & path, const ridgefill_base & base) : base(base), gguf(ridgefill_gguf_read(path)) {
        res.path = path;
    }

    ridgefill_sidefile read() {
        read_keys();
        for (const auto & k : OPTIONAL_KEYS) {
            find(k.key, k.kind);
        }
        read_tensors();
        if (const value * v = find("ridgefill.base.anchors", value::STRINGS)) {
            res.anchors = v->texts;
        }
        if (const value * v = find("ridgefill.base.encodings", value::STRINGS)) {
            res.encodings = v->texts;
        }
        const value * name = find("general.name", value::STRING);
        res.name =
            name && !name->text.empty() ? printable(name->text) : std::filesystem::path(res.path).filename().string();
        return std::move(res);
    }

  private:
    const ridgefill_base & base;
    const ridgefill_gguf gguf;
    ridgefill_sidefile res;
    uint32_t n_vocab = 0;    // 0: the file does not say
    std::string layer_kinds; // the file's, else the model's; empty: unknown

    [[noreturn]] void
    fail(const char * code, const std::string & what, const std::string & found, const std::string & allowed) const {
        throw ridgefill_sidefile_error(code, res.path, what + ": found " + found + ", allowed " + allowed);
    }

    static std::string printable(const std::string & s) {
        const std::string q = ridgefill_quoted(s);
        return q.substr(1, q.size() - 2);
    }

    //
    // keys
    //

    const value * find(const char * key, value::kind_t kind) const {
        const auto it = gguf.keys.find(key);
        if (it == gguf.keys.end()) {
            return nullptr;
        }
        if (it->second.kind != kind) {
            fail("key-type", key, ridgefill_gguf_kind_name(it->second.kind), ridgefill_gguf_kind_name(kind));
        }
        return &it->second;
    }

    const value & get(const char * key, value::kind_t kind) const {
        if (const value * v = find(key, kind)) {
            return *v;
        }
        fail("key-missing", key, "no such key", std::string("a key of kind ") + ridgefill_gguf_kind_name(kind));
    }

    void check_range(const char * code, const char * key, int64_t v, uint64_t lo, uint64_t hi, uint64_t step) const {
        if (v < (int64_t) lo || v > (int64_t) hi || v % (int64_t) step != 0) {
            fail(
                code, key, std::to_string(v),
                std::to_string(lo) + " .. " + std::to_string(hi)
                    + (step > 1 ? ", a multiple of " + std::to_string(step) : "")
            );
        }
    }

    uint32_t get_int(const char * code, const char * key, uint64_t lo, uint64_t hi, uint64_t step = 1) const {
        const int64_t v = get(key, value::INT).number;
        check_range(code, key, v, lo, hi, step);
        return (uint32_t) v;
    }

    std::string get_word(const char * code, const char * key, const std::vector<const char *> & allowed) const {
        const std::string & v = get(key, value::STRING).text;
        std::string list;
        for (const char * a : allowed) {
            if (v == a) {
                return v;
            }
            list += (list.empty() ? "" : ", ") + std::string(a);
        }
        fail(code, key, ridgefill_quoted(v), list);
    }

    void must_equal(const char * code, const char * key, uint64_t found, uint64_t want) const {
        if (found != 0 && want != 0 && found != want) {
            fail(code, key, std::to_string(found), std::to_string(want) + " (the model's)");
        }
    }

    void read_keys() {
        const auto arch = gguf.keys.find("general.architecture");
        if (arch == gguf.keys.end() || arch->second.kind != value::STRING || arch->second.text != "ridgefill") {
            fail(
                "not-ridgefill", "general.architecture",
                arch == gguf.keys.end() ? "no such key" : ridgefill_quoted(arch->second.text), "'ridgefill'"
            );
        }
        get_int("version", "ridgefill.version", 1, 1);
        res.encoding = get_word("encoding", "ridgefill.encoding", {"i8", "q8_0", "bf16"});
        res.target = get_word("target", "ridgefill.target", {"layer_input", "block_input"});
        get_int("group-size", "ridgefill.group_size", ridgefill_sidefile::group_size, ridgefill_sidefile::group_size);

        const uint32_t n_embd = read_base();

        res.split = get_int("split-range", "ridgefill.split", 1, res.n_layer - 1);
        if (res.split < base.min_split) {
            fail(
                "split-ngram", "ridgefill.split", std::to_string(res.split),
                std::to_string(base.min_split) + " .. " + std::to_string(res.n_layer - 1)
                    + ", above the layer that adds n-gram embeddings"
            );
        }
        res.n_in = get_int("source-width", "ridgefill.source_width", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP);
        if (res.n_in % n_embd != 0) {
            fail(
                "source-width", "ridgefill.source_width", std::to_string(res.n_in),
                "a multiple of embedding_length " + std::to_string(n_embd)
            );
        }
        must_equal("source-width", "ridgefill.source_width", res.n_in, base.source_width);
        res.n_out = get_int("target-width", "ridgefill.target_width", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP);
        // a layer's input is as wide as the split's; what its projections read may be one stream of several
        const bool block = res.target == "block_input";
        must_equal("target-width", "ridgefill.target_width", res.n_out, block ? base.block_width : base.source_width);
    }

    // What the file says of its model; returns n_embd.
    uint32_t read_base() {
        const std::string & arch = get("ridgefill.base.architecture", value::STRING).text;
        res.n_layer = get_int("base-layers", "ridgefill.base.block_count", 2, MAX_LAYERS);
        const uint32_t n_embd =
            get_int("base-width", "ridgefill.base.embedding_length", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP);
        if (find("ridgefill.base.vocab_size", value::INT)) {
            n_vocab = get_int("base-vocab", "ridgefill.base.vocab_size", 1, 1u << 31);
        }
        const value * name = find("ridgefill.base.name", value::STRING);
        const value * sha = find("ridgefill.base.tokenizer_sha256", value::STRING);
        const value * kinds = find("ridgefill.base.layer_kinds", value::STRING);
        layer_kinds = kinds ? kinds->text : base.layer_kinds;

        if (!base.arch.empty() && arch != base.arch) {
            fail(
                "base-architecture", "ridgefill.base.architecture", ridgefill_quoted(arch),
                ridgefill_quoted(base.arch) + " (the model's)"
            );
        }
        must_equal("base-layers", "ridgefill.base.block_count", res.n_layer, base.n_layer);
        must_equal("base-width", "ridgefill.base.embedding_length", n_embd, base.n_embd);
        if (kinds && !base.layer_kinds.empty() && kinds->text != base.layer_kinds) {
            fail(
                "layer-kinds", "ridgefill.base.layer_kinds", ridgefill_quoted(kinds->text),
                ridgefill_quoted(base.layer_kinds) + " (the model's)"
            );
        }
        must_equal("base-vocab", "ridgefill.base.vocab_size", n_vocab, base.n_vocab);
        if (sha && !base.tokenizer_sha256.empty() && sha->text != base.tokenizer_sha256) {
            fail(
                "tokenizer", "ridgefill.base.tokenizer_sha256", ridgefill_quoted(sha->text.substr(0, 12)),
                ridgefill_quoted(base.tokenizer_sha256.substr(0, 12)) + " (the model's; first 12 digits)"
            );
        }
        if (sha && (sha->text.size() != 64 || sha->text.find_first_not_of("0123456789abcdef") != std::string::npos)) {
            fail("tokenizer", "ridgefill.base.tokenizer_sha256", ridgefill_quoted(sha->text), "64 hex digits");
        }

        if (name && !name->text.empty() && !base.name.empty() && name->text != base.name) {
            warn(
                "base-name",
                "made for " + ridgefill_quoted(name->text) + ", the model is " + ridgefill_quoted(base.name)
            );
        }
        if (!sha) {
            warn("tokenizer-unchecked", "the file has no tokenizer hash");
        }
        if (n_vocab == 0) {
            warn("vocab-unchecked", "the file has no vocabulary size");
        }
        if (!kinds && !base.layer_kinds.empty()) {
            warn("kinds-unchecked", "the file does not say which layers are recurrent");
        }
        return n_embd;
    }

    void warn(const char * code, const std::string & text) {
        res.warnings.push_back(std::string(code) + ": " + res.path + ": " + text);
    }

    //
    // tensors
    //

    std::vector<std::string> parts() const {
        return res.encoding == "i8" ? std::vector<std::string>{"codes", "scale", "bias"}
                                    : std::vector<std::string>{"weight", "bias"};
    }

    void read_tensors() {
        const std::vector<std::string> all = parts();
        std::map<uint32_t, std::set<std::string>> found; // by layer: parts of the map, and "state"
        std::set<std::string> names;

        for (const auto & t : gguf.tensors) {
            uint32_t il = 0;
            std::string part;
            if (parse_name(t.name, il, part) && (part == "state" || std::count(all.begin(), all.end(), part))) {
                found[il].insert(part);
            } else if (t.name != SCORE && t.name != FINAL_WEIGHT && t.name != FINAL_BIAS) {
                fail(
                    "tensor-unknown", t.name, "the name", "names of encoding " + res.encoding + ", see docs/format.md"
                );
            }
        }
        for (const auto & [il, list] : found) {
            if (il < res.split || il >= res.n_layer) {
                fail(
                    "layer-range", "blk." + std::to_string(il) + ".ridgefill." + *list.begin(), std::to_string(il),
                    std::to_string(res.split) + " .. " + std::to_string(res.n_layer - 1)
                );
            }
        }
        for (const auto & t : gguf.tensors) {
            if (!names.insert(t.name).second) {
                fail("layer-twice", t.name, "the name twice", "each tensor once");
            }
        }
        check_complete(all, found);
        if (names.count(FINAL_WEIGHT) != names.count(FINAL_BIAS)) {
            fail("tensor-missing", "ridgefill.final", "one of weight, bias", "both or none");
        }
        check_shapes();
    }

    void check_complete(const std::vector<std::string> & all, std::map<uint32_t, std::set<std::string>> & found) const {
        for (auto & [il, list] : found) {
            list.erase("state");
        }
        for (uint32_t il = res.split + 1; il < res.n_layer; ++il) {
            if (found[il].empty()) {
                fail(
                    "layer-missing", "blk." + std::to_string(il), "no map",
                    "maps of layers " + std::to_string(res.split + 1) + " .. " + std::to_string(res.n_layer - 1)
                );
            }
        }
        for (const auto & [il, list] : found) {
            for (const std::string & part : all) {
                if (!list.empty() && !list.count(part)) {
                    fail(
                        "tensor-missing", "blk." + std::to_string(il) + ".ridgefill." + part, "no such tensor",
                        "every tensor of a map"
                    );
                }
            }
        }
    }

    void check_shapes() {
        shape state; // all states have one shape
        for (const auto & t : gguf.tensors) {
            uint32_t il = 0;
            std::string part;
            if (!parse_name(t.name, il, part)) {
                if (t.name == SCORE) {
                    check(t, GGML_TYPE_F32, n_vocab == 0 && t.ne.size() == 1 ? t.ne : shape{n_vocab});
                    res.score = {GGML_TYPE_F32, t.offset, t.size};
                } else if (t.name == FINAL_WEIGHT) {
                    check(t, GGML_TYPE_BF16, {res.n_in, res.n_in});
                } else {
                    check(t, GGML_TYPE_F32, {res.n_in});
                }
                continue;
            }
            if (part == "state") {
                state = state.empty() ? t.ne : state;
                check(t, GGML_TYPE_F32, state);
                if (t.ne.size() != 3) {
                    fail("tensor-shape", t.name, shape_text(t.ne), "[K, V, H]");
                }
                res.head_order = get_word("state-order", HEAD_ORDER, {"grouped", "tiled"});
                check_state(t, il);
                if (il > res.split) {
                    res.states[il] = {(ggml_type) t.type, t.offset, t.size};
                }
                continue;
            }
            const ggml_type weight = res.encoding == "i8"     ? GGML_TYPE_I8
                                     : res.encoding == "q8_0" ? GGML_TYPE_Q8_0
                                                              : GGML_TYPE_BF16;
            if (part == "bias") {
                check(t, GGML_TYPE_F32, {res.n_out});
            } else if (part == "scale") {
                check(t, GGML_TYPE_BF16, {res.n_groups(), res.n_out});
            } else {
                check(t, weight, {res.n_in, res.n_out});
            }
            if (il == res.split) {
                continue; // exact at run time: its input is the source itself
            }
            ridgefill_layer_spans & layer = res.layers[il];
            (part == "bias"    ? layer.bias
             : part == "scale" ? layer.scale
                               : layer.weight) = {(ggml_type) t.type, t.offset, t.size};
        }
    }

    void check_state(const ridgefill_gguf_tensor & t, uint32_t il) const {
        if (il < layer_kinds.size() && layer_kinds[il] != 'r') {
            fail(
                "state-layer", t.name, "layer kind " + ridgefill_quoted(layer_kinds.substr(il, 1)),
                "'r', a recurrent layer"
            );
        }
        const bool heads = base.state_heads == 0 || t.ne[2] == base.state_heads;
        if (base.state_size > 0 && (!heads || t.ne[0] * t.ne[1] * t.ne[2] != base.state_size)) {
            fail(
                "tensor-shape", t.name, shape_text(t.ne),
                "[K, V, H] of the model: " + std::to_string(base.state_size) + " values"
                    + (base.state_heads > 0 ? ", H " + std::to_string(base.state_heads) : "")
            );
        }
    }

    void check(const ridgefill_gguf_tensor & t, ggml_type type, const shape & ne) const {
        if (t.type != (uint32_t) type) {
            fail(
                "tensor-type", t.name,
                t.size > 0 ? ggml_type_name((ggml_type) t.type) : "type " + std::to_string(t.type), ggml_type_name(type)
            );
        }
        if (t.ne != ne) {
            fail("tensor-shape", t.name, shape_text(t.ne), shape_text(ne));
        }
    }
};

// first index whose value is not allowed, or -1
int64_t find_bad_f32(const float * v, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (!std::isfinite(v[i])) {
            return (int64_t) i;
        }
    }
    return -1;
}

int64_t find_bad_bf16(const uint16_t * v, size_t n, bool positive) {
    for (size_t i = 0; i < n; ++i) {
        const bool finite = (v[i] & 0x7f80) != 0x7f80;
        const bool zero = (v[i] & 0x7fff) == 0;
        const bool neg = (v[i] & 0x8000) != 0;
        if (!finite || (positive && (zero || neg))) {
            return (int64_t) i;
        }
    }
    return -1;
}

int64_t find_bad_q8_0(const uint8_t * v, size_t n_blocks) {
    for (size_t i = 0; i < n_blocks; ++i) {
        ggml_fp16_t d;
        memcpy(&d, v + i * ggml_type_size(GGML_TYPE_Q8_0), sizeof(d));
        if (!std::isfinite(ggml_fp16_to_fp32(d))) {
            return (int64_t) i;
        }
    }
    return -1;
}

} // namespace

ridgefill_sidefile ridgefill_sidefile_read(const std::string & path, const ridgefill_base & base) {
    return reader(path, base).read();
}

void ridgefill_sidefile_read_raw(
    const ridgefill_sidefile & file, const ridgefill_tensor_span & span, const std::string & what, void * dst
) {
    const file_ptr f = open_file(file.path);
    if (!f || fseeko(f.get(), (off_t) span.offset, SEEK_SET) != 0 || fread(dst, 1, span.size, f.get()) != span.size) {
        throw ridgefill_sidefile_error(
            "truncated", file.path, what + ": found a file that became shorter, allowed one that stays"
        );
    }
}

void ridgefill_sidefile_read_span(
    const ridgefill_sidefile & file, const ridgefill_tensor_span & span, const std::string & what, void * dst
) {
    ridgefill_sidefile_read_raw(file, span, what, dst);

    const char * code = nullptr;
    int64_t bad = -1;
    switch (span.type) {
    case GGML_TYPE_F32:
        code = what.rfind(".state") == std::string::npos ? "bias-value" : "state-value";
        bad = find_bad_f32((const float *) dst, span.size / 4);
        break;
    case GGML_TYPE_Q8_0:
        code = "weight-value";
        bad = find_bad_q8_0((const uint8_t *) dst, span.size / ggml_type_size(GGML_TYPE_Q8_0));
        break;
    case GGML_TYPE_BF16: {
        const bool scale = file.encoding == "i8";
        code = scale ? "scale-value" : "weight-value";
        bad = find_bad_bf16((const uint16_t *) dst, span.size / 2, scale);
    } break;
    case GGML_TYPE_I8: {
        code = "code-value";
        const void * hit = memchr(dst, 0x80, span.size);
        bad = hit ? (const char *) hit - (const char *) dst : -1;
    } break;
    default:
        GGML_ABORT("unexpected tensor type");
    }
    if (bad >= 0) {
        const char * allowed = span.type == GGML_TYPE_I8          ? "-127 .. 127"
                               : strcmp(code, "scale-value") == 0 ? "finite and > 0"
                                                                  : "finite";
        throw ridgefill_sidefile_error(
            code, file.path, what + ": found value " + std::to_string(bad) + " out of range, allowed " + allowed
        );
    }
}

std::string ridgefill_sidefile_identity(const std::string & path) {
    const file_ptr f = open_file(path);
    sha256_t ctx;
    sha256_init(&ctx);
    std::vector<uint8_t> buf(1 << 20);
    for (size_t n; f && (n = fread(buf.data(), 1, buf.size(), f.get())) > 0;) {
        sha256_update(&ctx, buf.data(), n);
    }
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_final(&ctx, digest);
    std::string hex;
    char two[3];
    for (const uint8_t b : digest) {
        snprintf(two, sizeof(two), "%02x", b);
        hex += two;
    }
    return hex;
}
