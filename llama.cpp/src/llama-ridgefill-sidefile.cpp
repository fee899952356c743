#include "llama-ridgefill-sidefile.h"

#include "ggml-cpp.h"
#include "gguf.h"
extern "C" {
#include "hash/sha256/sha256.h"
}

#include <cctype>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

namespace {

constexpr uint64_t MAX_KEYS    = 1024;
constexpr uint64_t MAX_TENSORS = 4096;
constexpr uint64_t MAX_HEADER  = 64u << 20;
constexpr uint64_t MAX_LAYERS  = 512;
constexpr uint64_t MAX_WIDTH   = 1u << 20;

using file_ptr = std::unique_ptr<FILE, int (*)(FILE *)>;

file_ptr open_file(const std::string & path) {
    return file_ptr(fopen(path.c_str(), "rb"), fclose);
}

// Names come from the file: keep control characters out of logs.
std::string printable(const std::string & s) {
    std::string res;
    for (const char c : s.substr(0, 80)) {
        res += std::isprint((unsigned char) c) ? c : '?';
    }
    return res;
}

std::string quoted(const std::string & s) {
    return "'" + printable(s) + "'";
}

// gguf.cpp reports defects only through ggml's log; collects the last line while it parses.
class gguf_log {
public:
    gguf_log() {
        ggml_log_get(&old_fn, &old_data);
        ggml_log_set([](ggml_log_level level, const char * text, void * self) {
            if (level == GGML_LOG_LEVEL_ERROR && ((gguf_log *) self)->first.empty()) {
                ((gguf_log *) self)->first = text;
            }
        }, this);
    }
    ~gguf_log() { ggml_log_set(old_fn, old_data); }

    // without the function's name and the line break
    std::string text() const {
        std::string res = first.substr(0, first.find('\n'));
        const size_t colon = res.find(": ");
        return colon == std::string::npos ? res : res.substr(colon + 2);
    }

private:
    ggml_log_callback old_fn   = nullptr;
    void *            old_data = nullptr;
    std::string       first;
};

class reader {
public:
    reader(const std::string & path, const ridgefill_base & base) : base(base) {
        res.path = path;
        open();
    }

    ridgefill_sidefile read() {
        read_keys();
        read_tensors();
        return std::move(res);
    }

private:
    const ridgefill_base & base;
    ridgefill_sidefile     res;
    gguf_context_ptr       gguf;
    uint64_t               file_size = 0;

    [[noreturn]] void fail(const char * code, const std::string & text) const {
        throw ridgefill_sidefile_error(code, res.path, text);
    }

    [[noreturn]] void fail(const char * code, const std::string & what, const std::string & found, const std::string & allowed) const {
        fail(code, what + ": found " + found + ", allowed " + allowed);
    }

    void open() {
        std::error_code ec;
        if (!std::filesystem::is_regular_file(res.path, ec)) {
            fail("no-file", "not a regular file that can be read");
        }
        file_size = std::filesystem::file_size(res.path, ec);
        const file_ptr f = open_file(res.path);
        if (!f || ec) {
            fail("no-file", "cannot be opened for reading");
        }

        // limits first, so that a small file cannot make the parser allocate much
        struct { char magic[4]; uint32_t version; int64_t n_tensors; int64_t n_kv; } head = {};
        static_assert(sizeof(head) == 24, "GGUF header");
        const size_t n_read = fread(&head, 1, sizeof(head), f.get());
        if (n_read < 4 || memcmp(head.magic, "GGUF", 4) != 0) {
            fail("not-gguf", "magic", quoted(std::string(head.magic, n_read < 4 ? n_read : 4)), "'GGUF'");
        }
        if (n_read < sizeof(head)) {
            fail("truncated", "header", std::to_string(file_size) + " bytes", "at least 24 bytes");
        }
        if (head.version != 3) {
            fail("not-gguf", "GGUF version", std::to_string(head.version), "3");
        }
        if (head.n_kv < 0 || (uint64_t) head.n_kv > MAX_KEYS) {
            fail("header", "number of keys", std::to_string(head.n_kv), "0 .. " + std::to_string(MAX_KEYS));
        }
        if (head.n_tensors < 0 || (uint64_t) head.n_tensors > MAX_TENSORS) {
            fail("header", "number of tensors", std::to_string(head.n_tensors), "0 .. " + std::to_string(MAX_TENSORS));
        }
        rewind(f.get());
        parse(f.get());
    }

    void parse(FILE * f) {
        gguf_log log;
        gguf.reset(gguf_init_from_file_ptr(f, { /*.no_alloc =*/ true, /*.ctx =*/ nullptr }));
        if (!gguf) {
            const std::string text = printable(log.text());
            const char * code =
                text.find("duplicate tensor name") != std::string::npos ? "layer-twice" :
                text.find("failed to read")        != std::string::npos ||
                text.find("remaining file size")   != std::string::npos ? "truncated"   : "header";
            fail(code, "GGUF header: " + text);
        }
        const uint64_t align = gguf_get_alignment(gguf.get());
        if (align < 8 || align > 65536) {
            fail("header", "general.alignment", std::to_string(align), "a power of two from 8 to 65536");
        }
        if (gguf_get_data_offset(gguf.get()) > MAX_HEADER) {
            fail("header", "header size", std::to_string(gguf_get_data_offset(gguf.get())), "at most 64 MiB");
        }
    }

    bool has_key(const char * key) const { return gguf_find_key(gguf.get(), key) >= 0; }

    int64_t key_id(const char * key) const {
        const int64_t id = gguf_find_key(gguf.get(), key);
        if (id < 0) {
            fail("key-missing", std::string(key) + ": absent, required");
        }
        return id;
    }

    std::string get_str(const char * key) const {
        const int64_t id = key_id(key);
        if (gguf_get_kv_type(gguf.get(), id) != GGUF_TYPE_STRING) {
            fail("key-type", key, gguf_type_name(gguf_get_kv_type(gguf.get(), id)), "str");
        }
        return gguf_get_val_str(gguf.get(), id);
    }

    int64_t get_int(const char * key) const {
        const int64_t id = key_id(key);
        const gguf_type type = gguf_get_kv_type(gguf.get(), id);
        switch (type) {
            case GGUF_TYPE_UINT8:  return gguf_get_val_u8 (gguf.get(), id);
            case GGUF_TYPE_INT8:   return gguf_get_val_i8 (gguf.get(), id);
            case GGUF_TYPE_UINT16: return gguf_get_val_u16(gguf.get(), id);
            case GGUF_TYPE_INT16:  return gguf_get_val_i16(gguf.get(), id);
            case GGUF_TYPE_UINT32: return gguf_get_val_u32(gguf.get(), id);
            case GGUF_TYPE_INT32:  return gguf_get_val_i32(gguf.get(), id);
            case GGUF_TYPE_INT64:  return gguf_get_val_i64(gguf.get(), id);
            case GGUF_TYPE_UINT64: {
                const uint64_t v = gguf_get_val_u64(gguf.get(), id);
                return v > INT64_MAX ? INT64_MAX : (int64_t) v; // out of every range below
            }
            default: fail("key-type", key, gguf_type_name(type), "an integer");
        }
    }

    uint32_t get_int(const char * key, const char * code, uint64_t lo, uint64_t hi) const {
        const int64_t v = get_int(key);
        if (v < (int64_t) lo || v > (int64_t) hi) {
            fail(code, key, std::to_string(v), std::to_string(lo) + " .. " + std::to_string(hi));
        }
        return (uint32_t) v;
    }

    uint32_t get_width(const char * key, const char * code) const {
        const uint32_t v = get_int(key, code, 32, MAX_WIDTH);
        if (v % 32 != 0) {
            fail(code, key, std::to_string(v), "a multiple of 32");
        }
        return v;
    }

    void must_equal(const char * code, const char * key, uint64_t found, uint64_t want) const {
        if (want != 0 && found != want) {
            fail(code, key, std::to_string(found), std::to_string(want) + " (the model's)");
        }
    }

    std::string get_word(const char * key, const char * code, const std::vector<const char *> & allowed) const {
        const std::string v = get_str(key);
        std::string list;
        for (const char * a : allowed) {
            if (v == a) {
                return v;
            }
            list += (list.empty() ? "" : ", ") + std::string(a);
        }
        fail(code, key, quoted(v), list);
    }

    void read_keys() {
        if (!has_key("general.architecture") || get_str("general.architecture") != "ridgefill") {
            const std::string found = has_key("general.architecture") ? quoted(get_str("general.architecture")) : "nothing";
            fail("not-ridgefill", "general.architecture", found, "'ridgefill'");
        }
        if (get_int("ridgefill.version") != 1) {
            fail("version", "ridgefill.version", std::to_string(get_int("ridgefill.version")), "1");
        }
        res.encoding = get_word("ridgefill.encoding", "encoding", { "i8", "q8_0", "bf16" });
        res.target   = get_word("ridgefill.target", "target", { "layer_input", "block_input" });
        get_int("ridgefill.group_size", "group-size", ridgefill_sidefile::group_size, ridgefill_sidefile::group_size);

        const std::string arch = get_str("ridgefill.base.architecture");
        if (!base.arch.empty() && arch != base.arch) {
            fail("base-architecture", "ridgefill.base.architecture", quoted(arch), quoted(base.arch) + " (the model's)");
        }
        res.n_layer = get_int("ridgefill.base.block_count", "base-layers", 2, MAX_LAYERS);
        must_equal("base-layers", "ridgefill.base.block_count", res.n_layer, base.n_layer);
        const uint32_t n_embd = get_width("ridgefill.base.embedding_length", "base-width");
        must_equal("base-width", "ridgefill.base.embedding_length", n_embd, base.n_embd);
        must_equal("base-vocab", "ridgefill.base.vocab_size", get_int("ridgefill.base.vocab_size", "base-vocab", 1, INT32_MAX), base.n_vocab);
        read_tokenizer();

        res.split = get_int("ridgefill.split", "split-range", 1, res.n_layer - 1);
        res.n_in  = get_width("ridgefill.source_width", "source-width");
        if (res.n_in % n_embd != 0) {
            fail("source-width", "ridgefill.source_width", std::to_string(res.n_in), "a multiple of " + std::to_string(n_embd));
        }
        must_equal("source-width", "ridgefill.source_width", res.n_in, base.source_width);
        res.n_out = get_width("ridgefill.target_width", "target-width");
        must_equal("target-width", "ridgefill.target_width", res.n_out, base.target_width);

        res.name = has_key("general.name") ? printable(get_str("general.name"))
                                           : std::filesystem::path(res.path).filename().string();
        if (!base.name.empty() && has_key("ridgefill.base.name") && get_str("ridgefill.base.name") != base.name) {
            res.warnings.push_back("base-name: " + res.path + ": fitted for " + quoted(get_str("ridgefill.base.name")) +
                    ", the model is " + quoted(base.name));
        }
    }

    void read_tokenizer() {
        const char * key = "ridgefill.base.tokenizer_sha256";
        if (!has_key(key)) {
            res.warnings.push_back("tokenizer-unchecked: " + res.path + ": no " + key + ", cannot compare the tokenizer");
            return;
        }
        const std::string sha = get_str(key);
        if (sha.size() != 64 || sha.find_first_not_of("0123456789abcdef") != std::string::npos) {
            fail("tokenizer", key, quoted(sha), "64 hex digits");
        }
        if (!base.tokenizer_sha256.empty() && sha != base.tokenizer_sha256) {
            fail("tokenizer", key, sha.substr(0, 12) + "...", base.tokenizer_sha256.substr(0, 12) + "... (the model's)");
        }
    }

    // "blk.<L>.ridgefill.<part>", L without leading zeros
    bool parse_name(const std::string & name, int64_t & il, std::string & part) const {
        int n = 0;
        long l = -1;
        char rest[GGML_MAX_NAME] = {};
        if (sscanf(name.c_str(), "blk.%ld.ridgefill.%63s%n", &l, rest, &n) != 2 || (size_t) n != name.size()) {
            return false;
        }
        if (name != "blk." + std::to_string(l) + ".ridgefill." + rest) {
            return false;
        }
        il   = l;
        part = rest;
        return true;
    }

    void read_tensors() {
        const bool i8 = res.encoding == "i8";
        std::map<uint32_t, std::set<std::string>> seen;
        std::map<uint64_t, uint64_t> spans; // offset -> end

        for (int64_t id = 0; id < gguf_get_n_tensors(gguf.get()); ++id) {
            const std::string name = gguf_get_tensor_name(gguf.get(), id);
            int64_t il = 0;
            std::string part;
            const bool known = parse_name(name, il, part) &&
                (part == "bias" || (i8 ? part == "codes" || part == "scale" : part == "weight"));
            if (!known) {
                fail("tensor-unknown", "tensor " + quoted(name) + " is not in the table of docs/format.md for encoding " + res.encoding);
            }
            if (il < (int64_t) res.split || il >= (int64_t) res.n_layer) {
                fail("layer-range", name + ": layer", std::to_string(il), std::to_string(res.split) + " .. " + std::to_string(res.n_layer - 1));
            }
            seen[(uint32_t) il].insert(part);

            const ridgefill_tensor_span span = check_tensor(id, name, part);
            spans[span.offset] = span.offset + span.size;
            ridgefill_layer_spans & layer = res.layers[(uint32_t) il];
            (part == "bias" ? layer.bias : part == "scale" ? layer.scale : layer.weight) = span;
        }

        for (uint32_t il = res.split; il < res.n_layer; ++il) {
            const size_t n_parts = seen.count(il) ? seen[il].size() : 0;
            if (n_parts == 0 && il > res.split) {
                fail("layer-missing", "no map of layer " + std::to_string(il) + ", required " +
                        std::to_string(res.split + 1) + " .. " + std::to_string(res.n_layer - 1));
            }
            if (n_parts != 0 && n_parts != (i8 ? 3u : 2u)) {
                fail("tensor-missing", "layer " + std::to_string(il) + ": found " + std::to_string(n_parts) +
                        " tensors, allowed " + (i8 ? "codes, scale and bias" : "weight and bias"));
            }
        }
        res.layers.erase(res.split); // exact at run time: its input is the source itself

        uint64_t end = 0;
        for (const auto & [from, to] : spans) {
            if (from < end) {
                fail("tensor-span", "two tensors overlap at byte " + std::to_string(from));
            }
            end = to;
        }
    }

    ridgefill_tensor_span check_tensor(int64_t id, const std::string & name, const std::string & part) const {
        const ggml_type type = gguf_get_tensor_type(gguf.get(), id);
        const ggml_type want =
            part == "bias"  ? GGML_TYPE_F32  :
            part == "scale" ? GGML_TYPE_BF16 :
            part == "codes" ? GGML_TYPE_I8   : res.encoding == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_BF16;
        if (type != want) {
            fail("tensor-type", name, ggml_type_name(type), ggml_type_name(want));
        }

        int64_t ne[GGML_MAX_DIMS] = { res.n_in, res.n_out, 1, 1 };
        if (part == "bias")  { ne[0] = res.n_out; ne[1] = 1; }
        if (part == "scale") { ne[0] = res.n_groups(); }
        const int64_t * found = gguf_get_tensor_ne(gguf.get(), id);
        for (int d = 0; d < GGML_MAX_DIMS; ++d) {
            if (found[d] != ne[d]) {
                fail("tensor-shape", name, shape(found), shape(ne));
            }
        }

        ridgefill_tensor_span span;
        span.type   = type;
        span.offset = gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), id);
        span.size   = ggml_row_size(type, ne[0]) * (uint64_t) ne[1];
        if (span.offset > file_size || span.size > file_size - span.offset) {
            fail("truncated", name, "a file of " + std::to_string(file_size) + " bytes",
                    "at least " + std::to_string(span.offset + span.size));
        }
        return span;
    }

    static std::string shape(const int64_t * ne) {
        return "[" + std::to_string(ne[0]) + ", " + std::to_string(ne[1]) + ", " + std::to_string(ne[2]) + ", " + std::to_string(ne[3]) + "]";
    }
};

// first index whose value is not allowed, or -1
int64_t find_bad_f32(const float * v, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (!std::isfinite(v[i])) { return (int64_t) i; }
    }
    return -1;
}

int64_t find_bad_bf16(const uint16_t * v, size_t n, bool positive) {
    for (size_t i = 0; i < n; ++i) {
        const bool finite = (v[i] & 0x7f80) != 0x7f80;
        const bool zero   = (v[i] & 0x7fff) == 0;
        const bool neg    = (v[i] & 0x8000) != 0;
        if (!finite || (positive && (zero || neg))) { return (int64_t) i; }
    }
    return -1;
}

int64_t find_bad_q8_0(const uint8_t * v, size_t n_blocks) {
    for (size_t i = 0; i < n_blocks; ++i) {
        ggml_fp16_t d;
        memcpy(&d, v + i * ggml_type_size(GGML_TYPE_Q8_0), sizeof(d));
        if (!std::isfinite(ggml_fp16_to_fp32(d))) { return (int64_t) i; }
    }
    return -1;
}

} // namespace

ridgefill_sidefile ridgefill_sidefile_read(const std::string & path, const ridgefill_base & base) {
    return reader(path, base).read();
}

void ridgefill_sidefile_read_span(
        const ridgefill_sidefile & file, const ridgefill_tensor_span & span, const std::string & what, void * dst) {
    const file_ptr f = open_file(file.path);
    if (!f || fseeko(f.get(), (off_t) span.offset, SEEK_SET) != 0 || fread(dst, 1, span.size, f.get()) != span.size) {
        throw ridgefill_sidefile_error("truncated", file.path, what + ": the file became shorter while it was read");
    }

    const char * code = nullptr;
    int64_t bad = -1;
    switch (span.type) {
        case GGML_TYPE_F32:  code = "bias-value"; bad = find_bad_f32((const float *) dst, span.size / 4); break;
        case GGML_TYPE_Q8_0: code = "scale-value"; bad = find_bad_q8_0((const uint8_t *) dst, span.size / ggml_type_size(GGML_TYPE_Q8_0)); break;
        case GGML_TYPE_BF16: {
            const bool scale = file.encoding == "i8";
            code = scale ? "scale-value" : "weight-value";
            bad  = find_bad_bf16((const uint16_t *) dst, span.size / 2, scale);
        } break;
        case GGML_TYPE_I8: {
            code = "code-value";
            const void * hit = memchr(dst, 0x80, span.size);
            bad = hit ? (const char *) hit - (const char *) dst : -1;
        } break;
        default: GGML_ABORT("unexpected tensor type");
    }
    if (bad >= 0) {
        const char * allowed = span.type == GGML_TYPE_I8 ? "-127 .. 127" :
            strcmp(code, "scale-value") == 0 ? "finite and > 0" : "finite";
        throw ridgefill_sidefile_error(code, file.path, what + ": value " + std::to_string(bad) + " is out of range, allowed " + allowed);
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
