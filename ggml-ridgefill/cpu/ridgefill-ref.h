#pragma once

// The arithmetic of the op in plain code: the oracle of the fast paths and the path of last resort.

#include "ggml.h"

#include <cstdint>

// Rounds one group of one row: q[i] = round(x[i] / scale) with scale = absmax / 127. Returns the scale: 1 for a zero
// group, NaN (and zero codes) for a group that holds a NaN or an infinity.
float ridgefill_ref_quantize(const float * x, int n, int8_t * q);

// y[o] of one row: codes and scale of output o, q and q_scale of the row
float ridgefill_ref_dot(
    const int8_t * codes, const ggml_bf16_t * scale, float bias, const int8_t * q, const float * q_scale, int64_t n_in
);
