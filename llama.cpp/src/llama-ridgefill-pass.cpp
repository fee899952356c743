#include "llama-ridgefill-pass.h"

#include "llama-ridgefill-inputs.h"
#include "llama-ridgefill-mixed.h"
#include "llama-ridgefill-projector.h"
#include "llama-ridgefill-rewrite.h"
#include "llama-ridgefill-targets.h"

#include "llama-graph.h"
#include "llama-impl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <unordered_set>

#include "ggml-impl.h" // a graph's leafs have no public accessor

namespace {

bool is_late_ffn(const ggml_tensor * t, int32_t split) {
    const char * dash = strrchr(t->name, '-');
    return dash && strstr(t->name, "ffn_") && atoi(dash + 1) >= split;
}

void add_input(const ridgefill_task & task, llm_graph_result & res, ggml_tensor * t, ridgefill_input::kind what) {
    ggml_build_forward_expand(res.get_gf(), t); // allocated even when nothing reads it
    res.add_input(std::make_unique<ridgefill_input>(task.inputs, t, what));
}

// Inputs are set whether or not a node reads them, and the allocator sees that an input has outgrown its place only by
// its readers. A view computes nothing.
void read_inputs(llm_graph_result & res) {
    ggml_cgraph * gf = res.get_gf();
    std::unordered_set<const ggml_tensor *> read;
    for (int i = 0; i < gf->n_nodes; ++i) {
        read.insert(gf->nodes[i]->src, gf->nodes[i]->src + GGML_MAX_SRC);
    }
    for (int i = 0, n = gf->n_leafs; i < n; ++i) {
        ggml_tensor * t = gf->leafs[i];
        if ((t->flags & GGML_TENSOR_FLAG_INPUT) && !ggml_is_empty(t) && !read.count(t)) {
            ggml_build_forward_expand(gf, ggml_view_1d(res.get_ctx(), t, 1, 0));
        }
    }
}

bool fail(ridgefill_outcome & out, const std::string & reason) {
    out.reason = reason;
    return false;
}

// y = map(h_S) in the shape of the target
ggml_tensor *
build_map(ggml_context * ctx, const ridgefill_map & map, ridgefill_source & source, ggml_tensor * target, int32_t il) {
    ggml_tensor * y = map.build(source);
    ggml_format_name(y, "ridgefill-%d", il);
    if (!ggml_are_same_shape(y, target)) {
        y = ggml_reshape_4d(ctx, y, target->ne[0], target->ne[1], target->ne[2], target->ne[3]);
    }
    return y;
}

// The rows of a tensor as [width, n_rows]; hyper-connection streams flatten stream-major, channel fastest.
ggml_tensor * as_rows(ggml_context * ctx, ggml_tensor * t, int64_t width) {
    if (t->ne[0] == width && ggml_n_dims(t) <= 2) {
        return t;
    }
    return ggml_reshape_2d(ctx, t, width, ggml_nelements(t) / width);
}

// these dangle now; t_h_nextn is read for all rows even when no output is wanted
void drop_outputs(llm_graph_result & res) {
    res.t_logits = nullptr;
    res.t_embd = nullptr;
    res.t_embd_pooled = nullptr;
    res.t_h_nextn = nullptr;
    res.t_sampled.clear();
    res.t_sampled_probs.clear();
    res.t_sampled_logits.clear();
    res.t_candidates.clear();
}

// Layer inputs that a caller reads (drafters do) stay; the plan keeps bulk rows exact when late ones are wanted.
std::vector<ggml_tensor *> wanted_layer_inputs(const llm_graph_params & params, const llm_graph_result & res) {
    std::vector<ggml_tensor *> keep;
    const auto & wanted = params.cparams.embeddings_layer_inp;
    for (size_t il = 0; il < wanted.size(); ++il) {
        if (wanted[il]) {
            keep.push_back(res.get_layer_inp((int) il));
        }
    }
    return keep;
}

void drop_layer_inputs(const llm_graph_params & params, llm_graph_result & res, int il_begin) {
    const auto & wanted = params.cparams.embeddings_layer_inp;
    for (size_t il = (size_t) il_begin; il < res.t_layer_inp.size(); ++il) {
        if (il >= wanted.size() || !wanted[il]) {
            res.t_layer_inp[il] = nullptr;
        }
    }
}

// Nothing late is left for a caller to read.
void drop_late(const llm_graph_params & params, llm_graph_result & res) {
    drop_outputs(res);
    drop_layer_inputs(params, res, params.ridgefill.split + 1);
}

// A late FFN that something still needs means that the target is not all that the layer's cache is made from.
std::function<bool(const ggml_tensor *)> late_ffns(const ridgefill_task & task) {
    return [split = task.split](const ggml_tensor * t) { return is_late_ffn(t, split); };
}

bool rewrite(
    llm_graph_result & res, ridgefill_outcome & out, const std::vector<ridgefill_redirect> & redirects,
    const std::vector<ggml_tensor *> & keep, const std::function<bool(const ggml_tensor *)> & must_go,
    const ridgefill_section & part
) {
    ridgefill_rewrite_stats stats;
    if (!ridgefill_rewrite(res.get_gf(), redirects, keep, stats, out.reason, must_go, part)) {
        return false;
    }
#ifndef NDEBUG
    GGML_ASSERT(ridgefill_rewrite_verify(res.get_gf(), redirects, out.reason));
#endif
    out.n_nodes_before = stats.n_nodes_before;
    out.n_nodes_after = stats.n_nodes_after;
    return true;
}

ggml_tensor *
checked_source(const ridgefill_task & task, llm_graph_result & res, int64_t n_rows, ridgefill_outcome & out) {
    ggml_tensor * source = ridgefill_find_source(res, task.split);
    if (!source) {
        fail(out, "no stream entering layer " + std::to_string(task.split));
        return nullptr;
    }
    if (!ridgefill_has_rows(source, task.maps->n_in, n_rows)) {
        fail(out, std::string(source->name) + " is not F32 [" + std::to_string(task.maps->n_in) + ", n_rows]");
        return nullptr;
    }
    return source;
}

// Every late layer's target -> its map of `source`.
bool redirect_targets(
    const ridgefill_task & task, llm_graph_result & res, ggml_tensor * source, int64_t n_rows,
    std::vector<ridgefill_redirect> & redirects, ridgefill_outcome & out
) {
    ggml_context * ctx = res.get_ctx();
    ridgefill_source x = {ctx, as_rows(ctx, source, task.maps->n_in)};

    for (const ridgefill_map & map : task.maps->maps) {
        ggml_tensor * target = ridgefill_find_target(res, task.target, map.il);
        if (!target) {
            return fail(out, "no target of layer " + std::to_string(map.il));
        }
        if (!ridgefill_has_rows(target, task.maps->n_out, n_rows)) {
            return fail(
                out, std::string(target->name) + " is not F32 [" + std::to_string(task.maps->n_out) + ", n_rows]"
            );
        }
        redirects.push_back({target, build_map(ctx, map, x, target, map.il)});
    }
    return true;
}

bool fill(const llm_graph_params & params, llm_graph_result & res, ridgefill_outcome & out) {
    const ridgefill_task & task = params.ridgefill;
    const int64_t n_rows = params.ubatch.n_tokens;
    const bool maps = task.what != ridgefill_task::PLUMB;

    std::vector<ridgefill_redirect> redirects;
    std::vector<ggml_tensor *> keep = wanted_layer_inputs(params, res);

    if (maps) {
        ggml_tensor * source = checked_source(task, res, n_rows, out);
        if (!source || !redirect_targets(task, res, source, n_rows, redirects, out)) {
            return false;
        }
        if (task.what == ridgefill_task::KEEP) {
            ggml_set_output(source);
            keep.push_back(source);
            out.source = source;
        }
    }

    if (!rewrite(res, out, redirects, keep, maps ? late_ffns(task) : nullptr, {})) {
        return false;
    }
    drop_late(params, res);
    return true;
}

bool early(const llm_graph_params & params, llm_graph_result & res, ridgefill_outcome & out) {
    const ridgefill_task & task = params.ridgefill;
    ggml_tensor * source = checked_source(task, res, params.ubatch.n_tokens, out);
    if (!source) {
        return false;
    }
    out.source = source;
    if (task.what == ridgefill_task::EARLY) {
        out.scores = ridgefill_build_scores(res, params.hparams, task.split);
    }

    std::vector<ggml_tensor *> keep = out.scores.sums;
    keep.push_back(source);
    ggml_set_output(source);

    if (!rewrite(res, out, {}, keep, late_ffns(task), {ridgefill_section::BEFORE, source})) {
        return false;
    }
    if (out.scores.weights) {
        add_input(task, res, out.scores.weights, ridgefill_input::WEIGHTS);
    }
    drop_late(params, res);
    return true;
}

// What a caller may read of the graph's end.
std::vector<ggml_tensor *> outputs_of(const llm_graph_result & res) {
    std::vector<ggml_tensor *> all = {res.t_logits, res.t_embd, res.t_embd_pooled, res.t_h_nextn};
    for (const auto * list : {&res.t_sampled, &res.t_sampled_probs, &res.t_sampled_logits, &res.t_candidates}) {
        all.insert(all.end(), list->begin(), list->end());
    }
    all.erase(std::remove(all.begin(), all.end(), nullptr), all.end());
    return all;
}

// Adds up the gates of the layers whose states are corrected.
void add_decay(const ridgefill_task & task, llm_graph_result & res, ggml_tensor * filled, ridgefill_outcome & out) {
    std::vector<int32_t> layers;
    for (const auto & [il, constant] : *task.states) {
        layers.push_back(il);
    }
    out.decay = ridgefill_build_decay(res, layers, filled);
}

bool resume(const llm_graph_params & params, llm_graph_result & res, ridgefill_outcome & out) {
    const ridgefill_task & task = params.ridgefill;
    const int64_t n_rows = params.ubatch.n_tokens;
    const bool maps = task.what != ridgefill_task::RESUME;
    ggml_tensor * source = checked_source(task, res, n_rows, out);
    if (!source) {
        return false;
    }
    ggml_tensor * rows = ridgefill_new_input(res.get_ctx(), source, "ridgefill-rows");

    std::vector<ridgefill_redirect> redirects;
    if (maps && !redirect_targets(task, res, rows, n_rows, redirects, out)) {
        return false;
    }
    std::unique_ptr<llm_graph_input_i> some;
    if (task.what == ridgefill_task::MIXED && !(some = ridgefill_mix(params, res, source, redirects, out.reason))) {
        return false;
    }
    redirects.push_back({source, rows});

    auto keep = maps ? std::vector<ggml_tensor *>() : outputs_of(res);
    ggml_tensor * filled = nullptr;
    if (task.states) {
        if (maps) {
            filled = ggml_new_tensor_1d(res.get_ctx(), GGML_TYPE_F32, n_rows);
            ggml_set_input(filled);
        }
        add_decay(task, res, filled, out);
        for (const auto & [il, sums] : out.decay) {
            keep.push_back(sums);
        }
    }
    if (!rewrite(res, out, redirects, keep, maps ? late_ffns(task) : nullptr, {ridgefill_section::AFTER, source})) {
        return false;
    }
    add_input(task, res, rows, ridgefill_input::ROWS);
    if (filled) {
        add_input(task, res, filled, ridgefill_input::FILLED);
    }
    if (some) {
        res.add_input(std::move(some));
    }
    if (maps) {
        drop_late(params, res);
    }
    return true;
}

bool capture(const llm_graph_params & params, llm_graph_result & res, ridgefill_outcome & out) {
    const ridgefill_task & task = params.ridgefill;
    for (const int32_t il : *task.layers) {
        ggml_tensor * t = il < 0 ? ridgefill_find_source(res, task.split) : ridgefill_find_target(res, task.target, il);
        if (!t) {
            return fail(
                out, il < 0 ? "no stream entering layer " + std::to_string(task.split)
                            : "no target of layer " + std::to_string(il)
            );
        }
        const int64_t n_rows = params.ubatch.n_tokens;
        if (!ridgefill_has_rows(t, ggml_nelements(t) / n_rows, n_rows)) {
            return fail(out, std::string(t->name) + " is not F32 [width, n_rows]");
        }
        ggml_set_output(t);
        out.captured.push_back(t);
    }
    return true;
}

} // namespace

void llama_ridgefill_build(const llm_graph_params & params, llm_graph_result & res) {
    const ridgefill_task & task = params.ridgefill;
    if (task.what == ridgefill_task::NONE) {
        return;
    }

    ridgefill_outcome out;
    switch (task.what) {
    case ridgefill_task::NONE:
        break;
    case ridgefill_task::FILL:
    case ridgefill_task::KEEP:
    case ridgefill_task::PLUMB:
        out.applied = fill(params, res, out);
        break;
    case ridgefill_task::CAPTURE:
        out.applied = capture(params, res, out);
        break;
    case ridgefill_task::EARLY:
    case ridgefill_task::HOLD:
        out.applied = early(params, res, out);
        break;
    case ridgefill_task::LATE:
    case ridgefill_task::MIXED:
    case ridgefill_task::RESUME:
        out.applied = resume(params, res, out);
        break;
    }

    if (out.applied && task.what != ridgefill_task::CAPTURE) {
        read_inputs(res);
    }
    if (!out.applied && out.reason != task.outcome->reason) {
        LLAMA_LOG_WARN("%s: the pass declines, bulk rows run exact: %s\n", __func__, out.reason.c_str());
    }
    *task.outcome = std::move(out);
}
