#include "ridgefill-few.h"

#include "ggml-cpu-impl.h"
#include "ggml-ridgefill.h"

#include <algorithm>
#include <cstring>

constexpr int CHUNK = 64; // outputs

size_t ridgefill_few_bytes(int64_t n_groups) {
    return size_t(n_groups) * RIDGEFILL_FEW_ROWS * (RIDGEFILL_GROUP + sizeof(float) + sizeof(int32_t));
}

// The panel holds 4 inputs of 16 rows side by side; here each row lies by itself.
static void
unpack(const ridgefill_x_group * x, int64_t n_groups, int n_rows, int8_t * q, float * scale, int32_t * sum) {
    for (int r = 0; r < n_rows; r++) {
        for (int64_t g = 0; g < n_groups; g++) {
            for (int k = 0; k < RIDGEFILL_GROUP / 4; k++) {
                memcpy(q + (r * n_groups + g) * RIDGEFILL_GROUP + 4 * k, x[g].q[k][r], 4);
            }
            scale[r * n_groups + g] = x[g].scale[r];
            sum[r * n_groups + g] = x[g].sum[r];
        }
    }
}

void ridgefill_few_forward(
    const ggml_compute_params & params, const ridgefill_kernels & k, ggml_tensor * dst, const ridgefill_x_group * x,
    char * own
) {
    const int64_t n_in = dst->src[0]->ne[0];
    const int64_t n_out = dst->src[0]->ne[1];
    const int64_t n_groups = ggml_ridgefill_n_groups(n_in);
    const int n_rows = int(dst->ne[1]);

    auto * q = reinterpret_cast<int8_t *>(own);
    auto * q_scale = reinterpret_cast<float *>(q + n_rows * n_groups * RIDGEFILL_GROUP);
    auto * q_sum = reinterpret_cast<int32_t *>(q_scale + n_rows * n_groups);
    unpack(x, n_groups, n_rows, q, q_scale, q_sum);

    const auto * codes = static_cast<const int8_t *>(dst->src[0]->data);
    const auto * scale = static_cast<const uint16_t *>(dst->src[1]->data);
    const auto * bias = dst->src[2] ? static_cast<const float *>(dst->src[2]->data) : nullptr;
    auto * y = static_cast<float *>(dst->data);
    for (int64_t chunk = params.ith; chunk * CHUNK < n_out; chunk = ggml_threadpool_chunk_add(params.threadpool, 1)) {
        const int64_t o = chunk * CHUNK;
        ridgefill_few f = {};
        f.codes = codes + o * n_in;
        f.scale = scale + o * n_groups;
        f.bias = bias ? bias + o : nullptr;
        f.n_in = n_in;
        f.n_groups = n_groups;
        f.n_out = int(std::min<int64_t>(CHUNK, n_out - o));
        f.q = q;
        f.q_scale = q_scale;
        f.q_sum = q_sum;
        f.n_rows = n_rows;
        f.y = y + o;
        f.y_stride = n_out;
        k.few(f);
    }
}
