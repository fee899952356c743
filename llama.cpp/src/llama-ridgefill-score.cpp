#include "llama-ridgefill-score.h"

#include "llama-ridgefill-select.h"

#include "llama-graph.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace {

constexpr int64_t MAX_BYTES = 64ll * 1024 * 1024; // of one chunk's attention weights
constexpr int64_t MAX_CHUNKS = 14;
constexpr int64_t QUERY_STEP = 2;

// What a layer attends with: either the weights themselves, or the operands of its fused attention.
struct attention {
    ggml_tensor * weights = nullptr; // F32 [n_kv, n_rows, n_head]
    ggml_tensor * fused = nullptr;   // GGML_OP_FLASH_ATTN_EXT
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

// Some of a ubatch's rows: n of them from `begin` on, every step-th.
struct run {
    int64_t begin, n, step;
};

ggml_tensor * rows_of(ggml_context * ctx, ggml_tensor * t, const run & r) {
    return ggml_view_4d(
        ctx, t, t->ne[0], r.n, t->ne[2], t->ne[3], t->nb[1] * r.step, t->nb[2], t->nb[3], r.begin * t->nb[1]
    );
}

// The rows to score: the whole tail speaks through every second of its queries, the question through all of its own.
// Chunks keep the attention weights small.
std::vector<run> runs_of(int64_t n_rows, int64_t n_max) {
    std::vector<run> res;
    const int64_t n_question = std::min<int64_t>(n_rows, RIDGEFILL_N_QUESTION);
    const int64_t n_others = (n_rows - n_question + QUERY_STEP - 1) / QUERY_STEP;
    for (int64_t i = 0; i < n_others; i += n_max) {
        res.push_back({i * QUERY_STEP, std::min(n_max, n_others - i), QUERY_STEP});
    }
    res.push_back({n_rows - n_question, n_question, 1});
    return res;
}

// soft_max(K q) of some rows, as the fused op computes it before it multiplies with V
ggml_tensor * unfused(ggml_context * ctx, ggml_tensor * fa, const run & r) {
    float scale, max_bias, softcap;
    memcpy(&scale, (const float *) fa->op_params + 0, sizeof(float));
    memcpy(&max_bias, (const float *) fa->op_params + 1, sizeof(float));
    memcpy(&softcap, (const float *) fa->op_params + 2, sizeof(float));

    ggml_tensor * kq = ggml_mul_mat(ctx, fa->src[1], rows_of(ctx, fa->src[0], r));
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    if (softcap != 0.0f) {
        kq = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, kq, scale / softcap)), softcap);
        scale = 1.0f;
    }
    ggml_tensor * mask = fa->src[3] ? rows_of(ctx, fa->src[3], r) : nullptr;
    kq = ggml_soft_max_ext(ctx, kq, mask && !ggml_is_contiguous(mask) ? ggml_cont(ctx, mask) : mask, scale, max_bias);
    ggml_soft_max_add_sinks(kq, fa->src[4]);
    return kq;
}

} // namespace

ridgefill_score_nodes ridgefill_build_scores(llm_graph_result & res, const llama_hparams & hparams, int split) {
    ridgefill_score_nodes out;
    ggml_context * ctx = res.get_ctx();

    for (int il = split - 1; il >= 0 && (int) out.sums.size() < RIDGEFILL_SCORE_LAYERS; --il) {
        const attention att = hparams.is_swa((uint32_t) il) ? attention() : find_attention(res, il);
        if (!att.weights && !att.fused) {
            continue; // a recurrent layer, or one with a window
        }
        const ggml_tensor * rows = att.fused ? att.fused->src[0] : att.weights; // [.., n_rows, n_head, n_stream]
        const int64_t n_rows = rows->ne[1];
        const int64_t n_head = rows->ne[2];
        const int64_t n_kv = att.fused ? att.fused->src[1]->ne[1] : att.weights->ne[0];
        if (out.n_head != 0 && n_head != out.n_head) {
            continue; // heads differ by layer: the deepest layer's number decides
        }
        if (!out.weights) {
            out.n_head = n_head;
            out.weights =
                ggml_new_tensor_4d(ctx, GGML_TYPE_F32, ridgefill_scores::N_QUERIES, n_rows, n_head, rows->ne[3]);
            ggml_set_name(out.weights, "ridgefill-score-weights");
            ggml_set_input(out.weights);
        }

        const int64_t fit = MAX_BYTES / (n_kv * n_head * (int64_t) sizeof(float));
        const int64_t least =
            n_rows / (QUERY_STEP * MAX_CHUNKS) + 1; // a long context may take more bytes, not more nodes

        ggml_tensor * sum = nullptr;
        for (const run & r : runs_of(n_rows, std::max(fit, least))) {
            ggml_tensor * p = att.weights ? rows_of(ctx, att.weights, r) : unfused(ctx, att.fused, r);
            ggml_tensor * s = ggml_out_prod(ctx, p, rows_of(ctx, out.weights, r));
            sum = sum ? ggml_add(ctx, sum, s) : s;
        }
        ggml_format_name(sum, "ridgefill-score-%d", il);
        ggml_set_output(sum);
        ggml_build_forward_expand(res.get_gf(), sum);
        out.sums.push_back(sum);
    }
    return out;
}
