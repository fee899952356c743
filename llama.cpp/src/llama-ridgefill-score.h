#pragma once

// Graph nodes that add up the attention which a ubatch's queries pay to every cache cell, in a few layers below the
// split.

#include "ggml.h"

#include <vector>

struct llama_hparams;
class llm_graph_result;

struct ridgefill_score_nodes {
    ggml_tensor * weights = nullptr; // input F32 [N_QUERIES, n_rows, n_head]: a row's weight in each sum
    std::vector<ggml_tensor *> sums; // F32 [n_kv, N_QUERIES, n_head] by layer, the deepest first
    int64_t n_head = 0;
};

// The last few layers below `split` that attend: at most this many are scored.
constexpr int RIDGEFILL_SCORE_LAYERS = 6;

// Nodes that it may add to a graph.
constexpr int RIDGEFILL_SCORE_MAX_NODES = RIDGEFILL_SCORE_LAYERS * 15 * 12; // 15 runs, 12 nodes each

// Adds the nodes to the graph. A ubatch of one sequence has one stream of cells, others only reserve memory. sums stays
// empty when no layer below the split attends to all rows (a sliding window has forgotten most of them).
ridgefill_score_nodes ridgefill_build_scores(llm_graph_result & res, const llama_hparams & hparams, int split);
