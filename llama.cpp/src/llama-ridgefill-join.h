#pragma once

// Joins two graphs of one model and one position of its memory: `all` has every row of a ubatch, `some` a few of them.
// Where `all` computes something anyway (it writes the caches and states of every row), `some` takes its rows from
// there; the rest `some` computes itself, so work on the other rows is not done. The exception is an op that mixes
// rows, as a short convolution does: then it is computed for all. Knows shapes and edges, no layers.

#include "ggml.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

class ridgefill_join {
  public:
    // ids: I32 [n_some], places of the few rows among all. kept: the nodes that `all` computes. own: input tensors of
    // `some` that are set for its rows.
    ridgefill_join(
        ggml_context * ctx, ggml_cgraph * all, int64_t n_all, ggml_tensor * ids,
        std::unordered_set<const ggml_tensor *> kept, const std::vector<ggml_tensor *> & own
    );

    // Makes `some` computable behind the kept nodes; `all`: the same tensor of the other graph. Changes sources of
    // nodes of `some` only. Returns false with a reason when the graphs differ or a tensor's rows cannot be told.
    bool take(ggml_tensor * some, ggml_tensor * all);

    // The nodes that `take` was called for, and all that they are now computed from.
    const std::unordered_set<const ggml_tensor *> & needed() const { return taken; }

    const std::string & reason() const { return why; }

  private:
    ggml_context * ctx;
    int64_t n_all;
    ggml_tensor * ids;
    std::unordered_set<const ggml_tensor *> kept;
    std::unordered_set<const ggml_tensor *> overwritten;          // memory that an op changes in place
    std::unordered_map<const ggml_tensor *, ggml_tensor *> value; // of the tensors of `some` that were met
    std::unordered_set<const ggml_tensor *> taken;
    std::string why;

    bool is_given(const ggml_tensor * all) const;
    ggml_tensor * find(ggml_tensor * some, ggml_tensor * all);
    ggml_tensor * gather(const ggml_tensor * some, ggml_tensor * all);
    bool compute(ggml_tensor * some, ggml_tensor * all);
    ggml_tensor * fail(const ggml_tensor * t, const char * what);
};
