// The side file reader against literal damage: each code of docs/format.md from a file that is wrong in one place,
// files cut at every byte, and random mutations. Whatever comes in, the answer is a map or one named error.
//
// usage: test-sidefile [n_mutations]
//        test-sidefile --codes      reads paths from stdin, prints the code of each ("ok" when it loads)

#include "check.h"
#include "sidefile/toy-file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <set>
#include <sstream>

#ifdef __linux__
#include <sys/resource.h>
#endif

using namespace toy;

#ifdef __SANITIZE_ADDRESS__
// whatever a file says, no allocation passes 100 MB: a larger one ends the program
extern "C" __attribute__((no_sanitize_address)) const char * __asan_default_options() {
    return "max_allocation_size_mb=100";
}
#endif

namespace {

const std::string PATH = "test-sidefile.tmp";

std::set<std::string> seen; // codes that some case produced

// "" when the file loads
std::string code_of(const ridgefill_base & b, std::string * text = nullptr) {
    try {
        read_all(PATH, b);
        return "";
    } catch (const ridgefill_sidefile_error & e) {
        const std::string what = e.what();
        CHECK(what.rfind(std::string(e.code) + ": " + PATH + ": ", 0) == 0, "%s", what.c_str());
        CHECK(
            what.find("found ") != std::string::npos && what.find(", allowed ") != std::string::npos, "%s", what.c_str()
        );
        for (const char c : what) {
            CHECK(c >= 32 && c < 127, "unprintable text in: %s", what.c_str());
        }
        seen.insert(e.code);
        if (text) {
            *text = what;
        }
        return e.code;
    }
}

void expect(const char * name, const bytes & contents, const char * code, const ridgefill_base & b = base()) {
    check::begin(name);
    write(PATH, contents);
    std::string text;
    const std::string found = code_of(b, &text);
    CHECK(found == code, "found '%s', want '%s' (%s)", found.c_str(), code, text.c_str());
}

// a good file changed in one place
void damage(
    const char * name, const char * code, const std::function<void(file &)> & change, const char * encoding = "i8"
) {
    file f = good(encoding);
    change(f);
    expect(name, f.pack(), code);
}

void test_good() {
    for (const char * encoding : {"i8", "q8_0", "bf16"}) {
        check::begin(encoding);
        write(PATH, good(encoding).pack());
        CHECK(code_of(base()).empty());
        const ridgefill_sidefile f = read_all(PATH, base());
        CHECK(
            f.name == "toy" && f.encoding == encoding && f.target == "block_input" && f.split == SPLIT
            && f.n_layer == N_LAYER
        );
        CHECK(f.n_in == N_IN && f.n_out == N_OUT && f.n_groups() == 1 && f.warnings.empty() && f.layers.size() == 2);
        CHECK(f.layers.at(3).bias.size == N_OUT * 4);
        // the spans lie where the data is
        std::vector<float> bias(N_OUT);
        ridgefill_sidefile_read_span(f, f.layers.at(4).bias, "bias", bias.data());
        CHECK(bias.front() == 0.5f && bias.back() == 0.5f);
    }
    damage("map of the split layer", "", [](file & f) {
        for (const tensor & t : map_of(SPLIT, "i8")) {
            f.add(t);
        }
    });
    CHECK(read_all(PATH, base()).layers.size() == 2, "and it is not used");
    damage("bytes after the last tensor", "", [](file & f) { f.tensors.back().data += bytes(96, 'x'); });
    expect("junk at the end", good().pack() + bytes(1001, 'x'), "");
    damage("alignment 64", "", [](file & f) { f.set("general.alignment", f.alignment = 64); });
    damage("alignment as u16", "", [](file & f) {
        f.set("general.alignment", U16, raw((uint16_t) (f.alignment = 8)));
    });
    damage("integers of other widths", "", [](file & f) {
        f.set("ridgefill.split", U8, raw((uint8_t) SPLIT)).set("ridgefill.source_width", I64, raw((int64_t) N_IN));
        f.set("ridgefill.version", U64, raw((uint64_t) 1)).set("ridgefill.group_size", I16, raw((int16_t) 128));
    });
    damage("unknown keys", "", [](file & f) {
        f.set("x", 1).set("y", STR, str("\x01\xff")).set("z", BOOL, raw((uint8_t) 1));
        f.set("list", ARR, raw((uint32_t) STR) + raw((uint64_t) 2) + str("a") + str(""));
    });
    damage("score and final map", "", [](file & f) {
        f.add({"ridgefill.score", {N_VOCAB}, GGML_TYPE_F32, bytes(400, '\0')});
        f.add({"ridgefill.final.weight", {N_IN, N_IN}, GGML_TYPE_BF16, bytes(N_IN * N_IN * 2, '\0')});
        f.add({"ridgefill.final.bias", {N_IN}, GGML_TYPE_F32, bytes(N_IN * 4, '\0')});
    });
    damage("no name: the file's", "", [](file & f) { f.drop("general.name"); });
    CHECK(read_all(PATH, base()).name == PATH);
    // nothing of a model is known: only the file itself is checked
    write(PATH, good().set("ridgefill.base.architecture", "other").pack());
    CHECK(code_of(ridgefill_base()).empty());
}

void test_not_gguf() {
    std::filesystem::remove(PATH);
    check::begin("no file");
    CHECK(code_of(base()) == "no-file");
    std::filesystem::create_directory(PATH);
    check::begin("a folder");
    CHECK(code_of(base()) == "no-file");
    std::filesystem::remove(PATH);

    expect("empty", "", "not-gguf");
    expect("three bytes", "GGU", "not-gguf");
    expect("a page", "<!DOCTYPE html>\n<html>" + bytes(400, ' '), "not-gguf");
    expect("other magic", "GGUL" + good().pack().substr(4), "not-gguf");
    damage("version 2", "not-gguf", [](file & f) { f.version = 2; });
    damage("version 4", "not-gguf", [](file & f) { f.version = 4; });
    damage("big endian", "not-gguf", [](file & f) { f.version = 3u << 24; });
    expect("four bytes", "GGUF", "truncated");
    damage("another kind of GGUF", "not-ridgefill", [](file & f) { f.set("general.architecture", "llama"); });
    damage("a LoRA", "not-ridgefill", [](file & f) {
        f.set("general.architecture", "llama").set("general.type", "adapter");
    });
    damage("no architecture", "not-ridgefill", [](file & f) { f.drop("general.architecture"); });
    damage("architecture 1", "not-ridgefill", [](file & f) { f.set("general.architecture", 1); });
}

// `change` at `skip` bytes behind the first occurrence of `find` in a good file
bytes patched(const bytes & find, size_t skip, const bytes & change) {
    bytes b = good().pack();
    const size_t at = b.find(find);
    if (CHECK(at != bytes::npos)) {
        b.replace(at + find.size() + skip, change.size(), change);
    }
    return b;
}

void test_header() {
    const bytes CODES = "blk.3.ridgefill.codes";
    const auto u32 = [](uint32_t v) { return raw(v); };
    const auto u64 = [](uint64_t v) { return raw(v); };
    expect("many tensors", patched("GGUF", 4, u64(4097)), "header");
    expect("more tensors than there are", patched("GGUF", 4, u64(4000)), "header");
    expect("negative tensors", patched("GGUF", 4, u64(UINT64_MAX)), "header");
    expect("many keys", patched("GGUF", 12, u64(1025)), "header");
    expect("huge key name", patched("GGUF", 20, u64(1ull << 62)), "header");
    expect("key name beyond the file", patched("GGUF", 20, u64(1 << 20)), "truncated");
    expect("value type 13", patched("general.architecture", 0, u32(13)), "header");
    expect("array of arrays", patched("general.architecture", 0, u32(ARR) + u32(ARR)), "header");
    expect(
        "array of too many strings", patched("general.architecture", 0, u32(ARR) + u32(STR) + u64(1ull << 60)),
        "truncated"
    );
    expect(
        "array of too many numbers", patched("general.architecture", 0, u32(ARR) + u32(U32) + u64(1ull << 61)),
        "truncated"
    );
    expect("bool 128", patched("ridgefill.group_size", 0, u32(BOOL)), "header");
    expect("no dimensions", patched(CODES, 0, u32(0)), "header");
    expect("five dimensions", patched(CODES, 0, u32(5)), "header");
    expect("an empty dimension", patched(CODES, 4, u64(0)), "header");
    expect("an overflowing shape", patched(CODES, 4, u64(1ull << 40) + u64(1ull << 40)), "header");
    expect("a negative dimension", patched(CODES, 4, u64(UINT64_MAX)), "header");
    expect("a shape beyond the file", patched(CODES, 4, u64(1ull << 30) + u64(1ull << 20)), "truncated");
    expect("another type's size", patched(CODES, 20, u32(GGML_TYPE_Q8_0)), "tensor-span");
    expect("an unknown type", patched(CODES, 20, u32(99)), "tensor-type");
    expect("a type that was removed", patched(CODES, 20, u32(4)), "tensor-type");
    expect("a gap", patched(CODES, 24, u64(32)), "tensor-span");
    expect("an offset beyond the file", patched(CODES, 24, u64(1ull << 63)), "tensor-span");
    expect("a control character in a name", patched(CODES.substr(0, 5), 0, "\n"), "header");
    expect("a byte above ASCII in a name", patched(CODES.substr(0, 5), 0, "\x80"), "header");
    damage("overlap", "tensor-span", [](file & f) { f.tensors[1].shift = -32; });
    damage("gap in front of the last", "tensor-span", [](file & f) { f.tensors.back().shift = 32; });
    damage("a key twice", "header", [](file & f) { f.keys.push_back(f.keys[3]); });
    damage("a tensor without name", "header", [](file & f) { f.tensors[0].name = ""; });
    damage("a blank in a name", "header", [](file & f) { f.tensors[0].name = "blk. 3.ridgefill.codes"; });
    damage("a name of 64 bytes", "header", [](file & f) { f.tensors[0].name = bytes(64, 'x'); });
    for (const uint32_t a : {0u, 1u, 3u, 4u, 48u, 131072u, 1u << 31}) {
        damage("alignment", "header", [&](file & f) { f.set("general.alignment", a); });
    }
    damage("alignment as text", "header", [](file & f) { f.set("general.alignment", "32"); });
    damage(
        "rows of a part of a block", "header", [](file & f) { f.named("blk.3.ridgefill.weight").ne[0] = 48; }, "q8_0"
    );
}

// Headers beyond the limits; the reader itself keeps at most 64 MiB of them.
void test_large() {
    damage("a string of 17 MB", "header", [](file & f) { f.set("x", bytes(17 << 20, 'x')); });
    damage("a header of 70 MB", "header", [](file & f) {
        for (int i = 0; i < 5; ++i) {
            f.set("x" + std::to_string(i), bytes(14 << 20, 'x'));
        }
    });
}

void test_keys() {
    for (const char * key :
         {"ridgefill.version", "ridgefill.encoding", "ridgefill.target", "ridgefill.group_size",
          "ridgefill.base.architecture", "ridgefill.base.block_count", "ridgefill.base.embedding_length",
          "ridgefill.split", "ridgefill.source_width", "ridgefill.target_width"}) {
        damage(key, "key-missing", [&](file & f) { f.drop(key); });
        damage(key, "key-type", [&](file & f) { f.set(key, F32, raw(1.0f)); });
        damage(key, "key-type", [&](file & f) { f.set(key, ARR, raw((uint32_t) U32) + raw((uint64_t) 1) + raw(1u)); });
    }
    for (const char * key :
         {"general.name", "general.author", "general.license", "general.doi", "ridgefill.base.name",
          "ridgefill.base.tokenizer_sha256", "ridgefill.base.layer_kinds", "ridgefill.base.anchors",
          "ridgefill.base.encodings", "ridgefill.fit.text_sha256", "ridgefill.state.head_order",
          "ridgefill.manifest"}) {
        damage(key, "key-type", [&](file & f) { f.set(key, 1); });
    }
    for (const char * key :
         {"ridgefill.base.vocab_size", "ridgefill.fit.rows", "ridgefill.fit.head", "ridgefill.fit.lambda",
          "ridgefill.fit.cosine", "ridgefill.fit.layers"}) {
        damage(key, "key-type", [&](file & f) { f.set(key, "1"); });
    }
    struct {
        const char * key;
        uint64_t value;
        const char * code;
    } const numbers[] = {
        {"ridgefill.version", 0, "version"},
        {"ridgefill.version", 2, "version"},
        {"ridgefill.group_size", 64, "group-size"},
        {"ridgefill.group_size", 0, "group-size"},
        {"ridgefill.base.block_count", 6, "base-layers"},
        {"ridgefill.base.block_count", 0, "base-layers"},
        {"ridgefill.base.block_count", 1, "base-layers"},
        {"ridgefill.base.block_count", 513, "base-layers"},
        {"ridgefill.base.embedding_length", 0, "base-width"},
        {"ridgefill.base.embedding_length", 33, "base-width"},
        {"ridgefill.base.embedding_length", 64, "base-width"},
        {"ridgefill.base.embedding_length", 1 << 21, "base-width"},
        {"ridgefill.base.vocab_size", 101, "base-vocab"},
        {"ridgefill.base.vocab_size", 0, "base-vocab"},
        {"ridgefill.split", 0, "split-range"},
        {"ridgefill.split", N_LAYER, "split-range"},
        {"ridgefill.split", 600, "split-range"},
        {"ridgefill.split", UINT32_MAX, "split-range"},
        {"ridgefill.split", UINT64_MAX, "split-range"},
        {"ridgefill.split", 1, "layer-missing"},
        {"ridgefill.split", 4, "layer-range"},
        {"ridgefill.source_width", 0, "source-width"},
        {"ridgefill.source_width", 48, "source-width"},
        {"ridgefill.source_width", 96, "source-width"},
        {"ridgefill.source_width", 1ull << 62, "source-width"},
        {"ridgefill.target_width", 0, "target-width"},
        {"ridgefill.target_width", 33, "target-width"},
        {"ridgefill.target_width", 64, "target-width"},
    };
    for (const auto & n : numbers) {
        damage(n.key, n.code, [&](file & f) { f.set(n.key, U64, raw(n.value)); });
    }
    damage("split -1", "split-range", [](file & f) { f.set("ridgefill.split", I32, raw((int32_t) -1)); });
    damage("encoding", "encoding", [](file & f) { f.set("ridgefill.encoding", "q4_0"); });
    damage("target", "target", [](file & f) { f.set("ridgefill.target", "kv"); });
    damage("base architecture", "base-architecture", [](file & f) { f.set("ridgefill.base.architecture", "qwen3"); });
    damage("tokenizer", "tokenizer", [](file & f) { f.set("ridgefill.base.tokenizer_sha256", std::string(64, 'b')); });
    damage("tokenizer, short", "tokenizer", [](file & f) { f.set("ridgefill.base.tokenizer_sha256", "ab"); });
    write(PATH, good().set("ridgefill.base.tokenizer_sha256", std::string(64, 'G')).pack());
    check::begin("tokenizer, no hex digits, no model");
    CHECK(code_of(ridgefill_base()) == "tokenizer");
}

// Layers 3 and 4 are recurrent here; a state has 4 x 2 values for each of 3 heads.
void test_states() {
    const tensor state = {"blk.3.ridgefill.state", {4, 2, 3}, GGML_TYPE_F32, bytes(96, '\0')};
    ridgefill_base b = base();
    b.layer_kinds = "aaarr";
    b.state_size = 24;
    b.state_heads = 3;
    const auto with = [&](const char * name, const char * code, const ridgefill_base & b,
                          const std::function<void(file &)> & change) {
        file f = good();
        f.set("ridgefill.base.layer_kinds", b.layer_kinds).add(state).set("ridgefill.state.head_order", "tiled");
        change(f);
        expect(name, f.pack(), code, b);
    };
    with("a state", "", b, [](file &) {});
    check::begin("its span");
    const ridgefill_sidefile read = read_all(PATH, b);
    CHECK(read.states.size() == 1 && read.states.at(3).size == 96 && read.head_order == "tiled");
    with("states of both layers, grouped", "", b, [&](file & f) {
        f.add(state).set("ridgefill.state.head_order", "grouped").tensors.back().name = "blk.4.ridgefill.state";
    });
    CHECK(read_all(PATH, b).states.size() == 2);
    ridgefill_base early = b;
    early.layer_kinds = "aarrr";
    const auto at_split = [](file & f) { f.tensors.back().name = "blk.2.ridgefill.state"; };
    with("the split layer's is not used", "", early, at_split);
    CHECK(read_all(PATH, early).states.empty());
    with("an attention layer has none", "state-layer", b, at_split);
    with("the file does not say: the model does", "state-layer", b, [&](file & f) {
        at_split(f);
        f.drop("ridgefill.base.layer_kinds");
    });
    with("no order", "key-missing", b, [](file & f) { f.drop("ridgefill.state.head_order"); });
    with("another order", "state-order", b, [](file & f) { f.set("ridgefill.state.head_order", "mixed"); });
    with("two shapes", "tensor-shape", b, [&](file & f) {
        f.add(state).tensors.back().name = "blk.4.ridgefill.state";
        f.tensors.back().ne = {2, 4, 3};
    });
    with("a flat one", "tensor-shape", b, [](file & f) { f.tensors.back().ne = {24}; });
    with("not finite", "state-value", b, [](file & f) { f.tensors.back().data.replace(92, 4, raw(NAN)); });
    ridgefill_base other = b;
    other.state_size = 48;
    with("the model's is larger", "tensor-shape", other, [](file &) {});
    other = b;
    other.state_heads = 4;
    with("the model has other heads", "tensor-shape", other, [](file &) {});
}

void test_tensors() {
    const bytes p3 = "blk.3.ridgefill.";
    damage("no tensors", "layer-missing", [](file & f) { f.tensors.clear(); });
    damage("one layer", "layer-missing", [](file & f) { f.tensors.resize(3); });
    for (const char * part : {"codes", "scale", "bias"}) {
        damage(part, "tensor-missing", [&](file & f) { f.drop_tensor(p3 + part); });
    }
    for (const uint32_t il : {0u, 1u, N_LAYER, 600u}) {
        damage("a layer too many", "layer-range", [&](file & f) {
            for (const tensor & t : map_of(il, "i8")) {
                f.add(t);
            }
        });
    }
    damage("a layer twice", "layer-twice", [](file & f) {
        for (const tensor & t : map_of(3, "i8")) {
            f.add(t);
        }
    });
    const tensor bias = {"", {N_OUT}, GGML_TYPE_F32, bytes(N_OUT * 4, '\0')};
    for (const char * name :
         {"blk.05.ridgefill.bias", "blk.-1.ridgefill.bias", "blk.+3.ridgefill.bias", "blk.3.ridgefill.biased",
          "blk.3.ridgefill.", "blk.3.ridgefill.weight", "blk.1234567.ridgefill.bias", "blk.4294967299.ridgefill.bias",
          "token_embd.weight", "ridgefill.scores", "ridgefill.final"}) {
        damage(name, "tensor-unknown", [&](file & f) {
            f.add(bias);
            f.tensors.back().name = name;
        });
    }
    damage("tensors of another encoding", "tensor-unknown", [](file & f) { f.set("ridgefill.encoding", "bf16"); });

    struct {
        const char * part;
        std::vector<uint64_t> ne;
    } const shapes[] = {
        {"codes", {N_IN, N_OUT - 1}}, {"codes", {N_IN - 1, N_OUT}},
        {"codes", {N_IN * N_OUT}},    {"codes", {N_OUT, N_IN}},
        {"codes", {N_IN, N_OUT, 1}},  {"scale", {2, N_OUT}},
        {"scale", {N_OUT}},           {"scale", {N_OUT, 1}},
        {"bias", {N_OUT + 1}},        {"bias", {1}},
        {"bias", {N_OUT, 1}},         {"bias", {1, N_OUT}},
    };
    for (const auto & s : shapes) {
        damage(s.part, "tensor-shape", [&](file & f) {
            tensor & t = f.named(p3 + s.part);
            uint64_t n = 1;
            for (const uint64_t x : s.ne) {
                n *= x;
            }
            t.ne = s.ne;
            t.data.resize(n * (t.type == GGML_TYPE_I8 ? 1 : t.type == GGML_TYPE_BF16 ? 2 : 4), '\1');
        });
    }
    damage("codes as F32", "tensor-type", [&](file & f) {
        f.named(p3 + "codes").type = GGML_TYPE_F32;
        f.named(p3 + "codes").data.resize(N_IN * N_OUT * 4);
    });
    damage("scale as F16", "tensor-type", [&](file & f) { f.named(p3 + "scale").type = GGML_TYPE_F16; });
    damage("bias as I32", "tensor-type", [&](file & f) { f.named(p3 + "bias").type = GGML_TYPE_I32; });

    test_states();
    damage("a short score", "tensor-shape", [](file & f) {
        f.add({"ridgefill.score", {99}, GGML_TYPE_F32, bytes(396, '\0')});
    });
    damage("half a final map", "tensor-missing", [](file & f) {
        f.add({"ridgefill.final.bias", {N_IN}, GGML_TYPE_F32, bytes(N_IN * 4, '\0')});
    });
}

void test_values() {
    const bytes p4 = "blk.4.ridgefill."; // the last layer: everything before it is good
    const auto poke = [&](const char * part, const bytes & v) {
        return [part, v, p4](file & f) {
            bytes & d = f.named(p4 + part).data;
            d.replace(d.size() - v.size(), v.size(), v);
        };
    };
    const auto b16 = [](uint16_t v) { return raw(v); };
    const auto b32 = [](uint32_t v) { return raw(v); };
    damage("scale NaN", "scale-value", poke("scale", b16(0x7fc0)));
    damage("scale infinite", "scale-value", poke("scale", b16(0x7f80)));
    damage("scale zero", "scale-value", poke("scale", b16(0)));
    damage("scale minus zero", "scale-value", poke("scale", b16(0x8000)));
    damage("scale negative", "scale-value", poke("scale", b16(0xbf80)));
    damage("scale tiny", "", poke("scale", b16(1)));
    damage("scale largest", "", poke("scale", b16(0x7f7f)));
    damage("code -128", "code-value", poke("codes", "\x80"));
    damage("code -127", "", poke("codes", "\x81"));
    damage("bias NaN", "bias-value", poke("bias", b32(0x7fc00000)));
    damage("bias infinite", "bias-value", poke("bias", b32(0xff800000)));
    damage("bias large", "", poke("bias", b32(0x7f7fffff)));
    damage("bf16 weight NaN", "weight-value", poke("weight", b16(0x7fc1)), "bf16");
    damage("bf16 weight infinite", "weight-value", poke("weight", b16(0xff80)), "bf16");
    damage("bf16 weight negative", "", poke("weight", b16(0xbf80)), "bf16");
    damage("q8_0 block NaN", "weight-value", poke("weight", b16(0x7e00) + bytes(32, '\1')), "q8_0");
    damage("q8_0 block zero", "", poke("weight", b16(0) + bytes(32, '\1')), "q8_0");

    check::begin("a file that changes while it is read");
    write(PATH, good().pack());
    const ridgefill_sidefile f = ridgefill_sidefile_read(PATH, base());
    std::filesystem::resize_file(PATH, 100);
    std::vector<char> buf(f.layers.at(4).bias.size);
    std::string code;
    try {
        ridgefill_sidefile_read_span(f, f.layers.at(4).bias, "bias", buf.data());
    } catch (const ridgefill_sidefile_error & e) {
        code = e.code;
    }
    CHECK(code == "truncated", "found '%s'", code.c_str());
}

void test_split_above_ngrams() {
    ridgefill_base b = base();
    b.min_split = SPLIT;
    expect("a split above the n-gram layer", good().pack(), "", b);
    b.min_split = SPLIT + 1;
    expect("a split at the n-gram layer", good().pack(), "split-ngram", b);
}

void test_model() {
    test_split_above_ngrams();
    const auto other = [](const char * name, const char * code, const std::function<void(ridgefill_base &)> & change) {
        ridgefill_base b = base();
        change(b);
        expect(name, good().pack(), code, b);
    };
    other("another architecture", "base-architecture", [](ridgefill_base & b) { b.arch = "gemma3"; });
    other("more layers", "base-layers", [](ridgefill_base & b) { b.n_layer = 6; });
    other("another width", "base-width", [](ridgefill_base & b) { b.n_embd = 64; });
    other("other layers", "layer-kinds", [](ridgefill_base & b) { b.layer_kinds[1] = 'r'; });
    other("another vocabulary", "base-vocab", [](ridgefill_base & b) { b.n_vocab = 101; });
    other("another tokenizer", "tokenizer", [](ridgefill_base & b) { b.tokenizer_sha256 = std::string(64, 'c'); });
    other("another stream", "source-width", [](ridgefill_base & b) { b.source_width = 128; });
    other("another target", "target-width", [](ridgefill_base & b) { b.block_width = 64; });

    check::begin("a layer's input is as wide as the stream");
    write(PATH, good().set("ridgefill.target", "layer_input").pack());
    CHECK(code_of(base()) == "target-width");
    ridgefill_base narrow = base();
    narrow.source_width = 0;
    CHECK(code_of(narrow).empty());

    check::begin("warnings");
    write(
        PATH, good()
                  .drop("ridgefill.base.tokenizer_sha256")
                  .drop("ridgefill.base.vocab_size")
                  .set("ridgefill.base.name", "x\x1b[31m")
                  .pack()
    );
    const std::vector<std::string> found = ridgefill_sidefile_read(PATH, base()).warnings;
    const char * const want[] = {"base-name: ", "tokenizer-unchecked: ", "vocab-unchecked: "};
    if (CHECK(found.size() == 3, "%zu warnings", found.size())) {
        for (size_t i = 0; i < 3; ++i) {
            CHECK(
                found[i].rfind(want[i], 0) == 0 && found[i].find('\x1b') == std::string::npos, "%s", found[i].c_str()
            );
        }
    }
}

void test_cuts() {
    check::begin("cut at every byte");
    const file f = good();
    const bytes b = f.pack();
    bytes last = f.tensors.back().data;
    const size_t pad = b.size() - (b.rfind(last) + last.size()); // bytes after the last tensor's data
    write(PATH, b);
    for (size_t n = b.size(); n-- > 0;) {
        std::filesystem::resize_file(PATH, n);
        const std::string code = code_of(base());
        const char * want = n < 4 ? "not-gguf" : b.size() - n <= pad ? "" : "truncated";
        CHECK(code == want, "%zu of %zu bytes: found '%s'", n, b.size(), code.c_str());
    }
}

// Numbers that readers get wrong.
const uint64_t ODD[] = {0,          1,          2,          31,        63,         64,         127,
                        128,        255,        256,        1 << 16,   0x7fffffff, 0x80000000, 0xffffffff,
                        1ull << 32, 1ull << 59, 1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX};

void test_mutations(int n) {
    std::map<std::string, int> codes;
    const size_t header = good().pack().find(good().tensors[0].data);
    for (int seed = 1; seed <= n; ++seed) {
        check::begin("mutation " + std::to_string(seed));
        std::mt19937 rng((uint32_t) seed);
        const auto below = [&](size_t k) { return (size_t) (rng() % k); };
        const char * encodings[] = {"i8", "q8_0", "bf16"};
        bytes b = good(encodings[below(3)]).pack();
        for (size_t k = 1 + below(3); k > 0; --k) {
            const size_t at = below(5) ? below(std::min(header, b.size())) : below(b.size());
            switch (below(6)) {
            case 0:
                b[at] ^= (char) (1 << below(8));
                break;
            case 1:
                b[at] = (char) below(256);
                break;
            case 2:
                b.erase(at, 1 + below(16));
                break;
            case 3:
                b.insert(at, bytes(1 + below(16), (char) below(256)));
                break;
            case 4:
                b.resize(at + 1);
                break;
            default: {
                const bytes v = raw(ODD[below(std::size(ODD))]).substr(0, below(2) ? 8 : 4);
                b.replace(at, std::min(v.size(), b.size() - at), v.substr(0, std::min(v.size(), b.size() - at)));
            }
            }
        }
        write(PATH, b);
        codes[code_of(base())]++;
    }
    check::begin("mutations");
    printf("%d mutations:", n);
    for (const auto & [code, count] : codes) {
        printf(" %s %d,", code.empty() ? "loads" : code.c_str(), count);
    }
    printf("\n");
    CHECK(codes.size() >= 12 && codes[""] < n / 3, "%zu codes", codes.size());
}

void test_identity() {
    check::begin("identity");
    write(PATH, "abc");
    CHECK(ridgefill_sidefile_identity(PATH) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    write(PATH, bytes(3 << 20, 'a')); // more than one block of reading
    const std::string a = ridgefill_sidefile_identity(PATH);
    write(PATH, bytes((3 << 20) - 1, 'a') + "b");
    CHECK(a.size() == 64 && a != ridgefill_sidefile_identity(PATH));
}

// Every code of docs/format.md was produced above.
void test_documented() {
    check::begin("codes of docs/format.md");
    const auto doc = std::filesystem::path(__FILE__).parent_path() / ".." / ".." / "docs" / "format.md";
    std::ifstream in(doc);
    if (!in) {
        printf("%s cannot be read from here: codes not compared\n", doc.string().c_str());
        return;
    }
    std::set<std::string> listed;
    std::string line;
    bool errors = false;
    while (std::getline(in, line)) {
        errors = (errors || line == "## Errors")
                 && line.rfind("Checks against", 0) != 0; // the reader's table, not the tools'
        if (errors && line.rfind("| `", 0) == 0) {
            const std::string cell = line.substr(0, line.find('|', 2));
            for (size_t at = cell.find('`'); at != std::string::npos;) {
                const size_t end = cell.find('`', at + 1);
                listed.insert(cell.substr(at + 1, end - at - 1));
                at = cell.find('`', end + 1);
            }
        }
    }
    CHECK(listed.size() > 30, "found %zu codes", listed.size());
    for (const std::string & code : listed) {
        // these values are checked by readers that use the tensors
        CHECK(seen.count(code) || code == "score-value", "no case produces %s", code.c_str());
    }
    for (const std::string & code : seen) {
        CHECK(listed.count(code), "%s is not documented", code.c_str());
    }
}

} // namespace

#ifdef RIDGEFILL_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    write(PATH, bytes((const char *) data, size));
    try {
        read_all(PATH, base());
    } catch (const ridgefill_sidefile_error &) {
    }
    return 0;
}
#else
int main(int argc, char ** argv) {
    if (argc > 1 && std::string(argv[1]) == "--codes") {
        for (std::string path; std::getline(std::cin, path);) {
            try {
                read_all(path, ridgefill_base());
                printf("ok\n");
            } catch (const ridgefill_sidefile_error & e) {
                printf("%s\n", e.code);
            }
        }
        return 0;
    }
    test_good();
    test_not_gguf();
    test_header();
    test_keys();
    test_tensors();
    test_values();
    test_model();
    test_cuts();
    test_mutations(argc > 1 ? atoi(argv[1]) : 4000);
    test_identity();
    test_documented();
#ifdef __linux__
    check::begin("memory");
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("peak memory %.1f MB\n", (double) u.ru_maxrss / 1024.0);
#if !defined(__SANITIZE_ADDRESS__)
    CHECK(u.ru_maxrss < 100 * 1024, "%ld KB", u.ru_maxrss);
#endif
#endif
    test_large();
    std::filesystem::remove(PATH);
    return check::finish();
}
#endif
