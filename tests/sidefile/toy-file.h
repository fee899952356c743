#pragma once

// A side file byte by byte, for tests: a good one of two tiny layers, with a handle on every part that can be wrong.

#include "llama-ridgefill-sidefile.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace toy {

enum : uint32_t { U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 };

using bytes = std::string;

template <typename T>
bytes raw(T v) {
    return bytes((const char *) &v, sizeof(v));
}

inline bytes str(const std::string & s) {
    return raw((uint64_t) s.size()) + s;
}

struct key {
    std::string name;
    uint32_t type;
    bytes value;
};

struct tensor {
    std::string name;
    std::vector<uint64_t> ne;
    uint32_t type;
    bytes data;
    int64_t shift = 0; // added to its offset
};

struct file {
    bytes magic = "GGUF";
    uint32_t version = 3;
    uint64_t alignment = 32;
    std::vector<key> keys;
    std::vector<tensor> tensors;

    key & at(const std::string & name) {
        for (key & k : keys) {
            if (k.name == name) {
                return k;
            }
        }
        keys.push_back({name, U32, raw(0u)});
        return keys.back();
    }
    file & set(const std::string & name, uint32_t v) { return set(name, U32, raw(v)); }
    file & set(const std::string & name, const std::string & v) { return set(name, STR, str(v)); }
    file & set(const std::string & name, uint32_t type, const bytes & v) {
        key & k = at(name);
        k.type = type;
        k.value = v;
        return *this;
    }
    file & drop(const std::string & name) {
        for (size_t i = 0; i < keys.size(); ++i) {
            if (keys[i].name == name) {
                keys.erase(keys.begin() + (long) i);
                break;
            }
        }
        return *this;
    }
    tensor & named(const std::string & name) {
        for (tensor & t : tensors) {
            if (t.name == name) {
                return t;
            }
        }
        fprintf(stderr, "no tensor %s\n", name.c_str());
        abort();
    }
    file & drop_tensor(const std::string & name) {
        for (size_t i = 0; i < tensors.size(); ++i) {
            if (tensors[i].name == name) {
                tensors.erase(tensors.begin() + (long) i);
                break;
            }
        }
        return *this;
    }
    file & add(const tensor & t) {
        tensors.push_back(t);
        return *this;
    }

    // at most so many bytes in all
    size_t size() const {
        size_t n = 64 + alignment;
        for (const key & k : keys) {
            n += 12 + k.name.size() + k.value.size();
        }
        for (const tensor & t : tensors) {
            n += 24 + t.name.size() + 8 * t.ne.size() + t.data.size() + alignment;
        }
        return n;
    }

    bytes pack() const {
        bytes res;
        res.reserve(size()); // doubling would take twice the memory that a test of large headers may use
        res += magic + raw(version) + raw((uint64_t) tensors.size()) + raw((uint64_t) keys.size());
        for (const key & k : keys) {
            res += str(k.name) + raw(k.type) + k.value;
        }
        bytes data;
        for (const tensor & t : tensors) {
            res += str(t.name) + raw((uint32_t) t.ne.size());
            for (const uint64_t n : t.ne) {
                res += raw(n);
            }
            res += raw(t.type) + raw((uint64_t) data.size() + (uint64_t) t.shift);
            data += t.data;
            data.resize((data.size() + alignment - 1) / alignment * alignment, '\0');
        }
        res.resize((res.size() + alignment - 1) / alignment * alignment, '\0');
        return res += data;
    }
};

constexpr uint32_t N_IN = 64, N_OUT = 32, N_LAYER = 5, SPLIT = 2, N_VOCAB = 100;

struct dims {
    uint32_t n_in = N_IN, n_out = N_OUT, n_layer = N_LAYER, split = SPLIT, n_vocab = N_VOCAB;
};

inline bytes repeat(const bytes & b, size_t n) {
    bytes res;
    for (size_t i = 0; i < n; ++i) {
        res += b;
    }
    return res;
}

inline bytes texts(const std::vector<std::string> & list) {
    bytes res = raw((uint32_t) STR) + raw((uint64_t) list.size());
    for (const std::string & t : list) {
        res += str(t);
    }
    return res;
}

inline std::vector<tensor> map_of(uint32_t il, const std::string & encoding, const dims & d = {}) {
    const std::string p = "blk." + std::to_string(il) + ".ridgefill.";
    const tensor bias = {p + "bias", {d.n_out}, GGML_TYPE_F32, repeat(raw(0.5f), d.n_out)};
    if (encoding == "i8") {
        const uint32_t n_groups = (d.n_in + 127) / 128;
        return {
            {p + "codes", {d.n_in, d.n_out}, GGML_TYPE_I8, repeat("\x01\xff", (size_t) d.n_in * d.n_out / 2)},
            {p + "scale", {n_groups, d.n_out}, GGML_TYPE_BF16, repeat(raw((uint16_t) 0x3f80), n_groups * d.n_out)},
            bias};
    }
    if (encoding == "q8_0") {
        const bytes block = raw((uint16_t) 0x3c00) + repeat("\x02", 32);
        return {{p + "weight", {d.n_in, d.n_out}, GGML_TYPE_Q8_0, repeat(block, d.n_in / 32 * d.n_out)}, bias};
    }
    const bytes one = raw((uint16_t) 0x3f80);
    return {{p + "weight", {d.n_in, d.n_out}, GGML_TYPE_BF16, repeat(one, (size_t) d.n_in * d.n_out)}, bias};
}

inline file good(const std::string & encoding = "i8", const dims & d = {}) {
    file f;
    f.set("general.architecture", "ridgefill").set("general.name", "toy");
    f.set("ridgefill.version", 1);
    f.set("ridgefill.base.architecture", "llama").set("ridgefill.base.name", "toy model");
    f.set("ridgefill.base.block_count", d.n_layer).set("ridgefill.base.embedding_length", d.n_out);
    f.set("ridgefill.base.vocab_size", d.n_vocab).set("ridgefill.base.tokenizer_sha256", std::string(64, 'a'));
    f.set("ridgefill.base.layer_kinds", std::string(d.n_layer, 'a'));
    f.set("ridgefill.base.anchors", ARR, texts({"blk.1.attn_norm.weight " + std::string(64, 'b')}));
    f.set("ridgefill.split", d.split).set("ridgefill.source_width", d.n_in).set("ridgefill.target_width", d.n_out);
    f.set("ridgefill.target", "block_input").set("ridgefill.group_size", 128).set("ridgefill.encoding", encoding);
    f.set("ridgefill.fit.rows", U64, raw((uint64_t) 1000));
    f.set("ridgefill.fit.lambda", ARR, raw((uint32_t) F32) + raw((uint64_t) 2) + raw(0.5f) + raw(0.25f));
    for (uint32_t il = d.split + 1; il < d.n_layer; ++il) {
        for (const tensor & t : map_of(il, encoding, d)) {
            f.add(t);
        }
    }
    return f;
}

// the model that the good file fits
inline ridgefill_base base() {
    ridgefill_base b;
    b.arch = "llama";
    b.name = "toy model";
    b.n_layer = N_LAYER;
    b.n_embd = N_OUT;
    b.n_vocab = N_VOCAB;
    b.source_width = N_IN;
    b.block_width = N_OUT;
    b.tokenizer_sha256 = std::string(64, 'a');
    b.layer_kinds = std::string(N_LAYER, 'a');
    return b;
}

inline void write(const std::string & path, const bytes & b) {
    FILE * f = fopen(path.c_str(), "wb");
    if (!f || fwrite(b.data(), 1, b.size(), f) != b.size() || fclose(f) != 0) {
        fprintf(stderr, "cannot write %s\n", path.c_str());
        abort();
    }
}

// Reads the header and every value of the maps, as the loader does.
inline ridgefill_sidefile read_all(const std::string & path, const ridgefill_base & b) {
    const ridgefill_sidefile f = ridgefill_sidefile_read(path, b);
    std::vector<char> buf;
    for (const auto & [il, spans] : f.layers) {
        const ridgefill_tensor_span list[] = {spans.weight, spans.scale, spans.bias};
        for (const ridgefill_tensor_span & span : list) {
            if (span.type != GGML_TYPE_COUNT) {
                buf.resize(span.size);
                ridgefill_sidefile_read_span(f, span, "blk." + std::to_string(il), buf.data());
            }
        }
    }
    for (const auto & [il, span] : f.states) {
        buf.resize(span.size);
        ridgefill_sidefile_read_span(f, span, "blk." + std::to_string(il) + ".ridgefill.state", buf.data());
    }
    return f;
}

} // namespace toy
