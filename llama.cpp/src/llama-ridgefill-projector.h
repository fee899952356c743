#pragma once

// The maps of a side file on the devices of their layers, ready for graphs.

#include "llama-ridgefill.h"

#include "llama-ridgefill-correction.h"

#include "ggml-cpp.h"
#include "ggml-ridgefill-stream.h"

#include <map>
#include <string>
#include <vector>

struct llama_model;
struct ridgefill_sidefile;
struct ridgefill_base;

// What the maps of a graph read. Where maps can share it, x is rounded once for all of a device, when the first is
// built.
struct ridgefill_source {
    ggml_context * ctx;
    ggml_tensor * x; // F32 [n_in, n_rows]
    std::map<ggml_backend_buffer_type_t, ggml_tensor *> rounded = {};
};

// y = W x + b of one layer. codes+scale: the ridgefill op; weight: mul_mat of Q8_0 or BF16.
struct ridgefill_map {
    int32_t il = 0;
    ggml_tensor * codes = nullptr;  // I8   [n_in, n_out]
    ggml_tensor * scale = nullptr;  // BF16 [ceil(n_in/128), n_out]
    ggml_tensor * weight = nullptr; // Q8_0 or BF16 [n_in, n_out]
    ggml_tensor * bias = nullptr;   // F32  [n_out]
    bool shares = false;            // takes a rounded x

    // x: F32 [n_in, n_rows] -> F32 [n_out, n_rows]
    ggml_tensor * build(ggml_context * ctx, ggml_tensor * x) const;
    ggml_tensor * build(ridgefill_source & source) const;

    static constexpr int max_nodes =
        4; // op or mul_mat + add, and a reshape to the target's form; x's reshape, its rounding
};

struct ridgefill_maps {
    int32_t n_in = 0;
    int32_t n_out = 0;
    std::vector<ridgefill_map> maps; // by layer, ascending, S+1 .. n_layer-1
};

struct llama_ridgefill_projector {
    const llama_model * model = nullptr;
    std::string name;
    std::string identity;
    int32_t split = 0;
    llama_ridgefill_target target = LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
    bool native = false;
    size_t size = 0;                   // on devices
    size_t host_size = 0;              // of maps that are copied to devices
    std::vector<std::string> warnings; // the loader's, "<code>: ..."
    ridgefill_maps maps;
    std::vector<float> score;     // per token id, for selection by class; empty: the side file has none
    ridgefill_corrections states; // in host memory: used once per prompt
    int32_t tile = 1;             // bulk ends at a multiple of it

    static constexpr int32_t recurrent_tile = 64; // rows of a chunk of the recurrent scan

    std::vector<ggml_context_ptr> ctxs;
    std::vector<ggml_backend_buffer_ptr> bufs;

    struct stream_deleter {
        void operator()(ggml_ridgefill_stream * stream) const { ggml_ridgefill_stream_free(stream); }
    };
    std::vector<std::unique_ptr<ggml_ridgefill_stream, stream_deleter>> streams; // of maps in host memory
};

// What a side file must fit to serve this model.
ridgefill_base ridgefill_base_of(const llama_model & model);

// Reads, checks and uploads. Throws std::runtime_error with the loader's sentence.
llama_ridgefill_projector *
ridgefill_projector_load(const llama_model & model, const std::string & path, llama_ridgefill_placement placement);
