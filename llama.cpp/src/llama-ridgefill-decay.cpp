#include "llama-ridgefill-decay.h"

#include "llama-graph.h"

#include <algorithm>
#include <string>

namespace {

// g of a layer, [.., n_head, n_rows]: an operand of the fused scan, else by name.
ggml_tensor * find_gate(llm_graph_result & res, int32_t il) {
    for (const auto & node : res.get_fused_nodes()) {
        if (node.il == il && node.tensor->op == GGML_OP_GATED_DELTA_NET) {
            return node.tensor->src[3];
        }
    }
    const std::string name = "gate-" + std::to_string(il);
    for (int i = ggml_graph_n_nodes(res.get_gf()) - 1; i >= 0; --i) {
        ggml_tensor * t = ggml_graph_node(res.get_gf(), i);
        if (name == t->name) {
            return ggml_reshape_4d(res.get_ctx(), t, 1, t->ne[0], t->ne[1], t->ne[2]);
        }
    }
    return nullptr;
}

} // namespace

ridgefill_decay_nodes
ridgefill_build_decay(llm_graph_result & res, const std::vector<int32_t> & layers, ggml_tensor * filled) {
    ridgefill_decay_nodes out;
    ggml_context * ctx = res.get_ctx();
    for (const int32_t il : layers) {
        ggml_tensor * g = find_gate(res, il);
        if (!g || g->ne[0] != 1 || g->ne[3] != 1 || !ggml_is_contiguous(g)) {
            continue; // no gate, one per channel, or several sequences
        }
        g = ggml_cont(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, g, g->ne[1], g->ne[2]))); // [n_rows, n_head]
        ggml_tensor * total = ggml_sum_rows(ctx, g);
        ggml_tensor * after = ggml_neg(ctx, ggml_sub(ctx, ggml_cumsum(ctx, g), total)); // the rows behind each row
        ggml_tensor * own = ggml_exp(ctx, after);
        ggml_tensor * sums = ggml_concat(ctx, ggml_exp(ctx, total), ggml_sum_rows(ctx, own), 0);
        if (filled) {
            sums = ggml_concat(ctx, sums, ggml_sum_rows(ctx, ggml_mul(ctx, own, filled)), 0);
        }
        ggml_format_name(sums, "ridgefill-decay-%d", il);
        ggml_set_output(sums);
        ggml_build_forward_expand(res.get_gf(), sums);
        out[il] = sums;
    }
    return out;
}

void ridgefill_decay::add(int32_t il, const float * sums, size_t n_sums, size_t n_head) {
    std::vector<head> & heads = layers[il];
    heads.resize(n_head);
    for (size_t h = 0; h < n_head; ++h) {
        const float * of_head = sums + n_sums * h;
        const double kept = of_head[0];
        heads[h].all = kept * heads[h].all + of_head[1];
        heads[h].filled = kept * heads[h].filled + (n_sums > 2 ? of_head[2] : 0.0);
    }
}

ridgefill_shares ridgefill_decay::shares(float rest) const {
    ridgefill_shares res;
    res.rest = rest;
    for (const auto & [il, heads] : layers) {
        for (const head & h : heads) {
            const double rho = h.all > 0.0 ? h.filled / h.all : h.all == 0.0 ? 1.0 : 0.0; // NaN: 0
            res.heads[il].push_back((float) std::clamp(rho, 0.0, 1.0));
        }
    }
    return res;
}
