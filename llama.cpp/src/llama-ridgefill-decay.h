#pragma once

// How much of a recurrent state's memory came from filled rows, per head. A gated delta net multiplies its state by
// exp(g) at every row before it adds the row, so with every row weighing 1:
//
//   D <- exp(g) D + 1,  N <- exp(g) N + (1 if the row was filled, else 0),  rho = N / D
//
// Quality mode scales the state correction by rho.

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

class llm_graph_result;

// rho by layer, one value per head in the model's order; `rest` for layers that are not listed.
struct ridgefill_shares {
    float rest = 1.0f;
    std::map<int32_t, std::vector<float>> heads = {};
};

// By layer, F32 [2 or 3, n_head]: what a weight of 1 before the ubatch is behind it, the weight of the ubatch's own
// rows, and that of the filled ones among them.
using ridgefill_decay_nodes = std::map<int32_t, ggml_tensor *>;

// Adds the nodes to a graph of one sequence. A layer without one gate per head and row has none. filled: F32 [n_rows],
// 1 for filled rows; nullptr: there are none.
ridgefill_decay_nodes
ridgefill_build_decay(llm_graph_result & res, const std::vector<int32_t> & layers, ggml_tensor * filled);

// Nodes that it may add per layer.
constexpr int RIDGEFILL_DECAY_MAX_NODES = 15;

class ridgefill_decay {
  public:
    // A ubatch. sums: [n_head][n_sums], as the nodes give them.
    void add(int32_t il, const float * sums, size_t n_sums, size_t n_head);

    // rest: for layers that were never added
    ridgefill_shares shares(float rest) const;

  private:
    struct head {
        double filled = 0.0, all = 0.0;
    };
    std::map<int32_t, std::vector<head>> layers;
};
