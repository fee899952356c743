#include "ggml-ridgefill.h"

#include "ggml-impl.h"
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdlib>
#include <cstring>

int64_t ggml_ridgefill_n_groups(int64_t n_in) {
    return (n_in + GGML_RIDGEFILL_GROUP - 1) / GGML_RIDGEFILL_GROUP;
}

static bool
shapes_match(const ggml_tensor * codes, const ggml_tensor * scale, const ggml_tensor * bias, const ggml_tensor * x) {
    const int64_t n_in = codes->ne[0];
    const int64_t n_out = codes->ne[1];
    return codes->type == GGML_TYPE_I8 && ggml_is_matrix(codes) && ggml_is_contiguous(codes) && n_in % 32 == 0
           && scale->type == GGML_TYPE_BF16 && ggml_is_matrix(scale) && ggml_is_contiguous(scale)
           && scale->ne[0] == ggml_ridgefill_n_groups(n_in) && scale->ne[1] == n_out
           && (bias == nullptr
               || (bias->type == GGML_TYPE_F32 && ggml_is_contiguous(bias) && ggml_is_vector(bias)
                   && bias->ne[0] == n_out))
           && x->type == GGML_TYPE_F32 && ggml_is_matrix(x) && x->ne[0] == n_in && x->nb[0] == sizeof(float);
}

ggml_tensor *
ggml_ridgefill(ggml_context * ctx, ggml_tensor * codes, ggml_tensor * scale, ggml_tensor * bias, ggml_tensor * x) {
    GGML_ASSERT(shapes_match(codes, scale, bias, x));

    ggml_tensor * result = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, codes->ne[1], x->ne[1]);
    result->op = GGML_OP_RIDGEFILL;
    result->src[0] = codes;
    result->src[1] = scale;
    result->src[2] = bias;
    result->src[3] = x;
    return result;
}

bool ggml_ridgefill_is_valid(const ggml_tensor * op) {
    return op->op == GGML_OP_RIDGEFILL && op->type == GGML_TYPE_F32 && ggml_is_contiguous(op)
           && shapes_match(op->src[0], op->src[1], op->src[2], op->src[3]) && op->ne[0] == op->src[0]->ne[1]
           && op->ne[1] == op->src[3]->ne[1];
}

bool ggml_ridgefill_disabled(void) {
    static const bool disabled = [] {
        const char * value = getenv("GGML_RIDGEFILL_DISABLE");
        return value != nullptr && *value != '\0' && strcmp(value, "0") != 0;
    }();
    return disabled;
}

int64_t
ggml_ridgefill_to_q8_0(const int8_t * codes, const ggml_bf16_t * scale, int64_t n_in, int64_t n_out, void * dst) {
    GGML_ASSERT(n_in % QK8_0 == 0);
    constexpr int64_t per_group = GGML_RIDGEFILL_GROUP / QK8_0;
    const int64_t n_blocks = n_in / QK8_0;
    const int64_t n_groups = ggml_ridgefill_n_groups(n_in);

    auto * out = static_cast<block_q8_0 *>(dst);
    int64_t n_inexact = 0;
    for (int64_t o = 0; o < n_out; o++) {
        for (int64_t g = 0; g < n_groups; g++) {
            const float wanted = ggml_bf16_to_fp32(scale[o * n_groups + g]);
            const ggml_fp16_t stored = ggml_fp32_to_fp16(wanted);
            n_inexact += ggml_fp16_to_fp32(stored) != wanted;
            for (int64_t b = g * per_group; b < (g + 1) * per_group && b < n_blocks; b++) {
                block_q8_0 & block = out[o * n_blocks + b];
                block.d = stored;
                memcpy(block.qs, codes + o * n_in + b * QK8_0, QK8_0);
            }
        }
    }
    return n_inexact;
}
