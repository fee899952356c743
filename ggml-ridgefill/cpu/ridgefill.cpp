#include "ggml-ridgefill-cpu.h"

#include "ggml-ridgefill.h"
#include "ridgefill-ref.h"
#include "ggml-cpu-impl.h"

#include <algorithm>

bool ggml_cpu_ridgefill_supports(const ggml_tensor * op) {
    return !ggml_ridgefill_disabled() && ggml_ridgefill_is_valid(op);
}

size_t ggml_cpu_ridgefill_work_size(const ggml_tensor * op, int n_threads) {
    const ggml_tensor * x = op->src[3];
    return ggml_nelements(x) + x->ne[1] * ggml_ridgefill_n_groups(x->ne[0]) * sizeof(float);
    GGML_UNUSED(n_threads);
}

void ggml_cpu_ridgefill_forward(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * codes = dst->src[0];
    const ggml_tensor * scale = dst->src[1];
    const ggml_tensor * bias  = dst->src[2];
    const ggml_tensor * x     = dst->src[3];

    const int64_t n_in     = codes->ne[0];
    const int64_t n_out    = codes->ne[1];
    const int64_t n_rows   = x->ne[1];
    const int64_t n_groups = ggml_ridgefill_n_groups(n_in);

    float  * q_scale = static_cast<float *>(params->wdata);                   // [n_rows][n_groups]
    int8_t * q       = reinterpret_cast<int8_t *>(q_scale + n_rows*n_groups); // [n_rows][n_in]

    for (int64_t r = params->ith; r < n_rows; r += params->nth) {
        const auto * row = reinterpret_cast<const float *>(static_cast<const char *>(x->data) + r*x->nb[1]);
        for (int64_t g = 0; g < n_groups; g++) {
            const int64_t begin = g*GGML_RIDGEFILL_GROUP;
            const int     n     = int(std::min<int64_t>(GGML_RIDGEFILL_GROUP, n_in - begin));
            q_scale[r*n_groups + g] = ridgefill_ref_quantize(row + begin, n, q + r*n_in + begin);
        }
    }
    ggml_barrier(params->threadpool);

    for (int64_t o = params->ith; o < n_out; o += params->nth) {
        const auto * codes_o = static_cast<const int8_t *>(codes->data) + o*n_in;
        const auto * scale_o = static_cast<const ggml_bf16_t *>(scale->data) + o*n_groups;
        const float  bias_o  = bias ? static_cast<const float *>(bias->data)[o] : 0.0f;
        for (int64_t r = 0; r < n_rows; r++) {
            static_cast<float *>(dst->data)[r*n_out + o] =
                ridgefill_ref_dot(codes_o, scale_o, bias_o, q + r*n_in, q_scale + r*n_groups, n_in);
        }
    }
}
