#pragma once

// Reads a side file (docs/format.md) and checks it against the model it is meant for. Knows GGUF, no llama internals,
// so that it can be fuzzed without a model. Nothing of the data section is allocated here: tensors are spans of the
// file.

#include "llama-ridgefill-gguf.h"

#include "ggml.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// What a side file must fit. Zero or empty: not compared.
struct ridgefill_base {
    std::string arch;
    std::string name;
    uint32_t n_layer = 0;
    uint32_t n_embd = 0;
    uint32_t n_vocab = 0;
    uint32_t source_width = 0; // the stream between layers
    uint32_t block_width = 0;  // what a layer's projections read
    std::string tokenizer_sha256;
    std::string layer_kinds;  // one letter per layer: a (attention) or r (recurrent)
    uint32_t min_split = 0;   // a later layer adds to the stream what no map knows (n-gram embeddings)
    uint64_t state_size = 0;  // values of a recurrent layer's state
    uint32_t state_heads = 0; // its heads
};

struct ridgefill_tensor_span {
    ggml_type type = GGML_TYPE_COUNT;
    uint64_t offset = 0; // from the beginning of the file
    uint64_t size = 0;   // bytes
};

struct ridgefill_layer_spans {
    ridgefill_tensor_span weight; // codes (I8), or the weight (Q8_0, BF16)
    ridgefill_tensor_span scale;  // BF16, encoding i8 only
    ridgefill_tensor_span bias;   // F32
};

struct ridgefill_sidefile {
    std::string path;
    std::string name;
    std::string encoding; // "i8", "q8_0", "bf16"
    std::string target;   // "layer_input", "block_input"
    uint32_t n_layer = 0;
    uint32_t split = 0;
    uint32_t n_in = 0;
    uint32_t n_out = 0;
    std::string head_order;             // "grouped", "tiled"; empty without states
    std::vector<std::string> anchors;   // "<tensor> <sha256>" of norms around the split
    std::vector<std::string> encodings; // "<tensor> <type>" of late weights
    std::vector<std::string> warnings;  // "<code>: ...", the file loads

    std::map<uint32_t, ridgefill_layer_spans> layers; // S+1 .. n_layer-1
    ridgefill_tensor_span score;                      // F32 [n_vocab], size 0: none
    std::map<uint32_t, ridgefill_tensor_span> states; // of recurrent layers above the split, F32

    static constexpr uint32_t group_size = 128;
    uint32_t n_groups() const { return (n_in + group_size - 1) / group_size; }
};

// Throws ridgefill_sidefile_error at the first defect of the header, keys and tensor table.
ridgefill_sidefile ridgefill_sidefile_read(const std::string & path, const ridgefill_base & base);

// Reads a span and checks its values (finite scales > 0, codes > -128, finite biases and states). dst has span.size
// bytes. what names the tensor in errors.
void ridgefill_sidefile_read_span(
    const ridgefill_sidefile & file, const ridgefill_tensor_span & span, const std::string & what, void * dst
);

// Reads a span whose values may be anything (a score of -inf means "never").
void ridgefill_sidefile_read_raw(
    const ridgefill_sidefile & file, const ridgefill_tensor_span & span, const std::string & what, void * dst
);

// sha256 of the whole file, 64 hex digits.
std::string ridgefill_sidefile_identity(const std::string & path);
