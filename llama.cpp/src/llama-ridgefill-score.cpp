#include "llama-ridgefill-score.h"

#include "llama-ridgefill-select.h"

#include "llama-graph.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace {

constexpr int64_t MAX_BYTES  = 64ll * 1024 * 1024; // of one chunk's attention weights
constexpr int64_t MAX_CHUNKS = 16;

// What a layer attends with: either the weights themselves, or the operands of its fused attention.
struct attention {
    ggml_tensor * weights = nullptr; // F32 [n_kv, n_rows, n_head]
    ggml_tensor * fused   = nullptr; // GGML_OP_FLASH_ATTN_EXT
};

attention find_attention(llm_graph_result & res, int il) {
    attention found;
    for (const auto & node : res.get_fused_nodes()) {
        if (node.op == LLM_FUSED_OP_FLASH_ATTN && node.il == il) {
            found.fused = node.tensor;
            return found;
        }
    }
    const std::string name = "kq_soft_max-" + std::to_string(il);
    for (int i = 0; i < ggml_graph_n_nodes(res.get_gf()); ++i) {
        ggml_tensor * t = ggml_graph_node(res.get_gf(), i);
        if (name == t->name) {
            found.weights = t;
            return found;
        }
    }
    return found;
}

ggml_tensor * rows_of(ggml_context * ctx, ggml_tensor * t, int64_t begin, int64_t n) {
    return ggml_view_4d(ctx, t, t->ne[0], n, t->ne[2], t->ne[3], t->nb[1], t->nb[2], t->nb[3], (size_t) begin * t->nb[1]);
}

// soft_max(K q) of some rows, as the fused op computes it before it multiplies with V
ggml_tensor * unfused(ggml_context * ctx, ggml_tensor * fa, int64_t begin, int64_t n) {
    float scale, max_bias, softcap;
    memcpy(&scale,    (const float *) fa->op_params + 0, sizeof(float));
    memcpy(&max_bias, (const float *) fa->op_params + 1, sizeof(float));
    memcpy(&softcap,  (const float *) fa->op_params + 2, sizeof(float));

    ggml_tensor * kq = ggml_mul_mat(ctx, fa->src[1], rows_of(ctx, fa->src[0], begin, n));
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    if (softcap != 0.0f) {
        kq = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, kq, scale / softcap)), softcap);
        scale = 1.0f;
    }
    kq = ggml_soft_max_ext(ctx, kq, fa->src[3] ? rows_of(ctx, fa->src[3], begin, n) : nullptr, scale, max_bias);
    ggml_soft_max_add_sinks(kq, fa->src[4]);
    return kq;
}

} // namespace

ridgefill_score_nodes ridgefill_build_scores(llm_graph_result & res, int split) {
    ridgefill_score_nodes out;
    ggml_context * ctx = res.get_ctx();

    for (int il = split - 1; il >= 0 && (int) out.sums.size() < RIDGEFILL_SCORE_LAYERS; --il) {
        const attention att = find_attention(res, il);
        if (!att.weights && !att.fused) {
            continue; // a recurrent layer
        }
        const ggml_tensor * rows = att.fused ? att.fused->src[0] : att.weights; // [.., n_rows, n_head, n_stream]
        const int64_t n_rows = rows->ne[1];
        const int64_t n_head = rows->ne[2];
        const int64_t n_kv   = att.fused ? att.fused->src[1]->ne[1] : att.weights->ne[0];
        if (out.n_head != 0 && n_head != out.n_head) {
            continue; // heads differ by layer: the deepest layer's number decides
        }
        if (!out.weights) {
            out.n_head  = n_head;
            out.weights = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, ridgefill_scores::N_QUERIES, n_rows, n_head, rows->ne[3]);
            ggml_set_name (out.weights, "ridgefill-score-weights");
            ggml_set_input(out.weights);
        }

        const int64_t fit = std::max<int64_t>(1, MAX_BYTES / (n_kv * n_head * (int64_t) sizeof(float)));
        const int64_t n   = att.weights ? n_rows : std::max(fit, (n_rows + MAX_CHUNKS - 1) / MAX_CHUNKS);

        ggml_tensor * sum = nullptr;
        for (int64_t begin = 0; begin < n_rows; begin += n) {
            const int64_t n_cur = std::min(n, n_rows - begin);
            ggml_tensor * p = att.weights ? att.weights : unfused(ctx, att.fused, begin, n_cur);
            ggml_tensor * s = ggml_out_prod(ctx, p, rows_of(ctx, out.weights, begin, n_cur));
            sum = sum ? ggml_add(ctx, sum, s) : s;
        }
        ggml_format_name(sum, "ridgefill-score-%d", il);
        ggml_set_output(sum);
        ggml_build_forward_expand(res.get_gf(), sum);
        out.sums.push_back(sum);
    }
    return out;
}
