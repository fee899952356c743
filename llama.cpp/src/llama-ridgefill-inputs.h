#pragma once

// Input tensors of cut graphs: set before each run from what the context kept.

#include "llama-ridgefill-pass.h"

#include "llama-graph.h"

class ridgefill_input : public llm_graph_input_i {
  public:
    enum kind {
        ROWS,    // the stream entering layer S: F32 [.., n_rows]
        WEIGHTS, // how much each query counts: F32 [N_QUERIES, n_rows, n_head]
        FILLED,  // 1 for filled rows, 0 for selected ones: F32 [n_rows]
    };

    ridgefill_input(const ridgefill_inputs * from, ggml_tensor * t, kind what) : from(from), t(t), what(what) {}

    void set_input(const llama_ubatch * ubatch) override;

    // the number of rows, all that matters here, is part of what a graph is reused by
    bool can_reuse(const llm_graph_params &) override { return true; }

  private:
    const ridgefill_inputs * from;
    ggml_tensor * t;
    kind what;
};

// A new input tensor of the shape of `like`.
ggml_tensor * ridgefill_new_input(ggml_context * ctx, const ggml_tensor * like, const char * name);
