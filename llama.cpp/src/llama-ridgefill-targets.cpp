#include "llama-ridgefill-targets.h"

#include "llama-graph.h"

#include <string>

namespace {

std::string layer_name(const char * base, int32_t il) {
    return std::string(base) + "-" + std::to_string(il);
}

// Names may repeat: the first norm of a layer is the first of its name, a layer's output the last.
ggml_tensor * find_node(ggml_cgraph * gf, const std::string & name, bool first) {
    ggml_tensor * res = nullptr;
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * t = ggml_graph_node(gf, i);
        if (name == t->name) {
            res = t;
            if (first) {
                break;
            }
        }
    }
    return res;
}

// What architectures call the stream entering layer il, the usual name first: the output of layer il - 1, or a name of
// il.
const struct {
    const char * base;
    int32_t shift;
} STREAMS[] = {
    {"l_out", -1},
    {"l_last", -1},       // deepseek4
    {"ffn_residual", -1}, // plamo2
    {"attn_norm_in", 0},  // step35 renames it
};

// What they call the input of a layer's projections.
const char * const BLOCKS[] = {
    "hc_mixed",    // hyper-connections read several streams into one
    "attn_norm_2", // falcon 40b: attn_norm is the FFN's
    "attn_norm",
    "model.layers.{}.operator_norm", // lfm2
};

// The stream entering layer il: where the architecture says so, else by name.
ggml_tensor * find_stream(llm_graph_result & res, int32_t il) {
    ggml_tensor * t = res.get_layer_inp(il);
    if (t && layer_name("layer_inp", il) != t->name) { // that name: a side tap for drafters (deepseek4), not the stream
        return t;
    }
    for (const auto & s : STREAMS) {
        if (ggml_tensor * out = find_node(res.get_gf(), layer_name(s.base, il + s.shift), false)) {
            return out;
        }
    }
    return nullptr;
}

} // namespace

ggml_tensor * ridgefill_find_source(llm_graph_result & res, int32_t split) {
    return find_stream(res, split);
}

ggml_tensor * ridgefill_find_target(llm_graph_result & res, llama_ridgefill_target target, int32_t il) {
    if (target == LLAMA_RIDGEFILL_TARGET_LAYER_INPUT) {
        return find_stream(res, il);
    }
    for (const char * base : BLOCKS) {
        if (ggml_tensor * t = find_node(res.get_gf(), layer_name(base, il), true)) {
            return t;
        }
    }
    return nullptr;
}

bool ridgefill_has_rows(const ggml_tensor * t, int64_t width, int64_t n_rows) {
    if (t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t) || ggml_nelements(t) != width * n_rows) {
        return false;
    }
    int64_t below = 1;
    for (int d = 0; d < GGML_MAX_DIMS && below < width; ++d) {
        below *= t->ne[d];
    }
    return below == width;
}
