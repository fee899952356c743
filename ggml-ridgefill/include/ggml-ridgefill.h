#pragma once

// The ridgefill op: a matrix product with int8 codes and one bf16 scale per group of 128 inputs of an output.
//
//   y[o, r] = bias[o] + sum over groups g of scale[g, o] * sum over i in g of codes[i, o] * x[i, r]
//
// This header knows tensors and nothing of layers, side files or requests.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_RIDGEFILL_GROUP 128

// codes  I8   [n_in, n_out], contiguous; n_in a multiple of 32, the last group may be short
// scale  BF16 [ceil(n_in / 128), n_out], contiguous
// bias   F32  [n_out], contiguous, or NULL
// x      F32  [n_in, n_rows], each row contiguous (rows may lie further apart: a padded nb[1])
// result F32  [n_out, n_rows]
//
// Backends may compute W8A8: x rounded per row and group to int8 (round half to even of x * (127 / absmax), f32 scale
// absmax / 127; a group that is zero or below 4e-37 has scale 1 and codes 0), an exact int32 dot product, and f32
// accumulation from the bias on in group order. Every code from -128 to 127 is exact. A row with a NaN or an infinity
// gives NaN in all its outputs.
GGML_API struct ggml_tensor * ggml_ridgefill(
    struct ggml_context * ctx, struct ggml_tensor * codes, struct ggml_tensor * scale, struct ggml_tensor * bias,
    struct ggml_tensor * x
);

GGML_API int64_t ggml_ridgefill_n_groups(int64_t n_in);

// The same in two steps, for several maps of one x: round x once, then multiply. The bits are those of ggml_ridgefill.
// The rounded form (I8, n_rows rows) has a layout of the backend's own, so both steps must run on the same backend:
// codes is that of any of the maps and is not read, it makes the scheduler put the rounding where the maps are.
GGML_API struct ggml_tensor *
ggml_ridgefill_round(struct ggml_context * ctx, struct ggml_tensor * codes, struct ggml_tensor * x);
GGML_API struct ggml_tensor * ggml_ridgefill_rounded(
    struct ggml_context * ctx, struct ggml_tensor * codes, struct ggml_tensor * scale, struct ggml_tensor * bias,
    struct ggml_tensor * rounded
);

// Room in a rounded form: n_rows rounded up to 16, 136 bytes for each of their groups, 4 KiB for alignment and tables.
GGML_API size_t ggml_ridgefill_rounded_size(int64_t n_in, int64_t n_rows);

// Which of the three an op with op->op == GGML_OP_RIDGEFILL is, by types, shapes and layout. For a backend's
// supports_op.
enum ggml_ridgefill_form {
    GGML_RIDGEFILL_INVALID,
    GGML_RIDGEFILL_WHOLE,   // ggml_ridgefill
    GGML_RIDGEFILL_ROUND,   // ggml_ridgefill_round
    GGML_RIDGEFILL_ROUNDED, // ggml_ridgefill_rounded
};
GGML_API enum ggml_ridgefill_form ggml_ridgefill_form_of(const struct ggml_tensor * op);

// ggml_ridgefill, and nothing else: for a backend that has only that.
GGML_API bool ggml_ridgefill_is_valid(const struct ggml_tensor * op);

// True when the environment asks for the portable path (GGML_RIDGEFILL_DISABLE set, not empty and not 0); every
// backend then declines the op. Read once.
GGML_API bool ggml_ridgefill_disabled(void);

// The portable path, for backends without the op: writes the map as Q8_0 rows (dst: ggml_row_size(GGML_TYPE_Q8_0, n_in)
// * n_out bytes), for ggml_mul_mat and ggml_add. Codes are copied, each group's scale is repeated per block of 32 as
// f16. Returns the number of scales that f16 cannot hold exactly; 0 means that the result holds the same values.
GGML_API int64_t
ggml_ridgefill_to_q8_0(const int8_t * codes, const ggml_bf16_t * scale, int64_t n_in, int64_t n_out, void * dst);

#ifdef __cplusplus
}
#endif
