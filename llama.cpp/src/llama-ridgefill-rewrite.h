#pragma once

// A graph rewrite on public ggml calls: redirect every use of some tensors to replacements, then drop every node that
// no root needs. Knows no layers and no models, so it is tested on small graphs without any.

#include "ggml.h"

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

struct ridgefill_redirect {
    ggml_tensor * target;      // a node of the graph
    ggml_tensor * replacement; // not in the graph yet; same shape and type

    // nodes of another graph that the replacement is made from, where their order matters; else they come as needed
    std::vector<ggml_tensor *> steps = {};
};

// Which cache writes stay: all, those that come before `source` (do not depend on it), those that come after, or none.
struct ridgefill_section {
    enum which { ALL, BEFORE, AFTER, NONE };

    which what = ALL;
    const ggml_tensor * source = nullptr;
};

struct ridgefill_rewrite_stats {
    int n_nodes_before = 0;
    int n_nodes_after = 0;
    int n_roots = 0;
    int n_uses = 0;    // redirected sources
    int n_reroots = 0; // views of a target that now view its replacement
};

// Roots are the nodes that write into memory allocated before the graph was built (the caches), and extra_roots. With
// a `part` only the cache writes of that part count.
//
// requires: each target is a compute tensor with a use; no replacement is made from its own target (it may read nodes
// of
//           the graph, which then read other replacements); no target survives; no in-place op that would be dropped
//           writes to memory of a kept node or a target; no kept node must go. Otherwise returns false with a reason
//           and leaves the graph untouched.
// ensures:  kept nodes stay in their original order; a replacement stands just before its first use; input leafs stay
//           (their data is set from outside); ridgefill_rewrite_verify holds.
//
// Running it again with no redirects on its own result changes nothing.
bool ridgefill_rewrite(
    ggml_cgraph * gf, const std::vector<ridgefill_redirect> & redirects, const std::vector<ggml_tensor *> & extra_roots,
    ridgefill_rewrite_stats & stats, std::string & reason,
    const std::function<bool(const ggml_tensor *)> & must_go = {}, const ridgefill_section & part = {}
);

// The nodes that the cache writes of a part are made from, the writes included, as far as `stops`.
std::unordered_set<const ggml_tensor *>
ridgefill_written_from(ggml_cgraph * gf, const std::vector<ggml_tensor *> & stops, const ridgefill_section & part = {});

// VIEW, RESHAPE, PERMUTE, TRANSPOSE: computes nothing.
bool ridgefill_is_pure_view(const ggml_tensor * t);

// The tensor whose memory t lies in.
const ggml_tensor * ridgefill_storage_of(const ggml_tensor * t);

// Every source and viewed tensor of a node comes earlier in the graph, and no target is used. Returns false with the
// offending node's name in reason.
bool ridgefill_rewrite_verify(
    ggml_cgraph * gf, const std::vector<ridgefill_redirect> & redirects, std::string & reason
);
