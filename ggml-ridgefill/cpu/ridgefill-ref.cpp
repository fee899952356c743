#include "ridgefill-ref.h"

#include "ggml-impl.h"
#include "ggml-ridgefill.h"

#include <algorithm>
#include <cmath>
#include <limits>

float ridgefill_ref_quantize(const float * x, int n, int8_t * q) {
    float absmax = 0.0f;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && std::isfinite(x[i]);
        absmax = std::max(absmax, std::fabs(x[i]));
    }

    // below about 4e-37 the reciprocal overflows: such a group counts as zero
    const float inverse = 127.0f / absmax;
    if (!finite || !std::isfinite(inverse)) {
        std::fill(q, q + n, 0);
        return finite ? 1.0f : std::numeric_limits<float>::quiet_NaN();
    }
    for (int i = 0; i < n; i++) {
        q[i] = int8_t(std::nearbyint(x[i] * inverse)); // half to even in the default rounding mode
    }
    return absmax / 127.0f;
}

float ridgefill_ref_dot(
    const int8_t * codes, const ggml_bf16_t * scale, float bias, const int8_t * q, const float * q_scale, int64_t n_in
) {
    float y = bias;
    for (int64_t begin = 0, g = 0; begin < n_in; begin += GGML_RIDGEFILL_GROUP, g++) {
        const int64_t end = std::min<int64_t>(begin + GGML_RIDGEFILL_GROUP, n_in);
        int32_t dot = 0;
        for (int64_t i = begin; i < end; i++) {
            dot += int32_t(codes[i]) * int32_t(q[i]);
        }
        // product of scales first, then one fused multiply-add: the fast paths do the same, so all paths agree bit by
        // bit
        y = std::fmaf(GGML_BF16_TO_FP32(scale[g]) * q_scale[g], float(dot), y);
    }
    return y;
}
