#include "ggml-ridgefill.h"

#include "ggml-impl.h"
#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdlib>
#include <cstring>

int64_t ggml_ridgefill_n_groups(int64_t n_in) {
    return (n_in + GGML_RIDGEFILL_GROUP - 1) / GGML_RIDGEFILL_GROUP;
}

static bool codes_match(const ggml_tensor * codes) {
    return codes->type == GGML_TYPE_I8 && ggml_is_matrix(codes) && ggml_is_contiguous(codes) && codes->ne[0] % 32 == 0;
}

static bool map_matches(const ggml_tensor * codes, const ggml_tensor * scale, const ggml_tensor * bias) {
    const int64_t n_out = codes->ne[1];
    return codes_match(codes) && scale->type == GGML_TYPE_BF16 && ggml_is_matrix(scale) && ggml_is_contiguous(scale)
           && scale->ne[0] == ggml_ridgefill_n_groups(codes->ne[0]) && scale->ne[1] == n_out
           && (bias == nullptr
               || (bias->type == GGML_TYPE_F32 && ggml_is_contiguous(bias) && ggml_is_vector(bias)
                   && bias->ne[0] == n_out));
}

static bool x_matches(const ggml_tensor * codes, const ggml_tensor * x) {
    return x->type == GGML_TYPE_F32 && ggml_is_matrix(x) && x->ne[0] == codes->ne[0] && x->nb[0] == sizeof(float);
}

static bool rounded_matches(const ggml_tensor * codes, const ggml_tensor * rounded) {
    return rounded->type == GGML_TYPE_I8 && ggml_is_matrix(rounded) && ggml_is_contiguous(rounded)
           && ggml_nbytes(rounded) >= ggml_ridgefill_rounded_size(codes->ne[0], rounded->ne[1]);
}

static ggml_tensor *
build(ggml_context * ctx, ggml_tensor * codes, ggml_tensor * scale, ggml_tensor * bias, ggml_tensor * x) {
    ggml_tensor * result = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, codes->ne[1], x->ne[1]);
    result->op = GGML_OP_RIDGEFILL;
    result->src[0] = codes;
    result->src[1] = scale;
    result->src[2] = bias;
    result->src[3] = x;
    return result;
}

ggml_tensor *
ggml_ridgefill(ggml_context * ctx, ggml_tensor * codes, ggml_tensor * scale, ggml_tensor * bias, ggml_tensor * x) {
    GGML_ASSERT(map_matches(codes, scale, bias) && x_matches(codes, x));
    return build(ctx, codes, scale, bias, x);
}

ggml_tensor * ggml_ridgefill_rounded(
    ggml_context * ctx, ggml_tensor * codes, ggml_tensor * scale, ggml_tensor * bias, ggml_tensor * rounded
) {
    GGML_ASSERT(map_matches(codes, scale, bias) && rounded_matches(codes, rounded));
    return build(ctx, codes, scale, bias, rounded);
}

size_t ggml_ridgefill_rounded_size(int64_t n_in, int64_t n_rows) {
    return size_t((n_rows + 15) / 16 * 16) * ggml_ridgefill_n_groups(n_in) * (GGML_RIDGEFILL_GROUP + 8) + 4096;
}

ggml_tensor * ggml_ridgefill_round(ggml_context * ctx, ggml_tensor * codes, ggml_tensor * x) {
    GGML_ASSERT(codes_match(codes) && x_matches(codes, x));

    // as many rows as x, for everyone who asks a tensor how many rows a batch has
    const int64_t n_rows = x->ne[1];
    const int64_t row = (ggml_ridgefill_rounded_size(codes->ne[0], n_rows) + n_rows - 1) / n_rows;
    ggml_tensor * result = ggml_new_tensor_2d(ctx, GGML_TYPE_I8, row, n_rows);
    result->op = GGML_OP_RIDGEFILL;
    result->src[0] = codes;
    result->src[3] = x;
    return result;
}

ggml_ridgefill_form ggml_ridgefill_form_of(const ggml_tensor * op) {
    const ggml_tensor * codes = op->src[0];
    const ggml_tensor * scale = op->src[1];
    const ggml_tensor * x = op->src[3];
    if (op->op != GGML_OP_RIDGEFILL || !codes || !x || !ggml_is_contiguous(op) || op->ne[1] != x->ne[1]) {
        return GGML_RIDGEFILL_INVALID;
    }
    if (scale == nullptr) {
        const bool ok = codes_match(codes) && x_matches(codes, x) && rounded_matches(codes, op);
        return ok ? GGML_RIDGEFILL_ROUND : GGML_RIDGEFILL_INVALID;
    }
    if (op->type != GGML_TYPE_F32 || op->ne[0] != codes->ne[1] || !map_matches(codes, scale, op->src[2])) {
        return GGML_RIDGEFILL_INVALID;
    }
    return x_matches(codes, x)         ? GGML_RIDGEFILL_WHOLE
           : rounded_matches(codes, x) ? GGML_RIDGEFILL_ROUNDED
                                       : GGML_RIDGEFILL_INVALID;
}

bool ggml_ridgefill_is_valid(const ggml_tensor * op) {
    return ggml_ridgefill_form_of(op) == GGML_RIDGEFILL_WHOLE;
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
