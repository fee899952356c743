#pragma once

// Where a model's graph has the stream entering a layer, and what a layer's cache is made from.

#include "llama-ridgefill.h"

struct ggml_tensor;
class llm_graph_result;

// The stream entering layer `split` (nullptr: not found), and layer il's target.
ggml_tensor * ridgefill_find_source(llm_graph_result & res, int32_t split);
ggml_tensor * ridgefill_find_target(llm_graph_result & res, llama_ridgefill_target target, int32_t il);

// One row per token, rows contiguous and last. Some architectures keep the tokens in the middle (gemma3n), and a tensor
// of as many numbers would be read wrongly.
bool ridgefill_has_rows(const ggml_tensor * t, int64_t width, int64_t n_rows);
