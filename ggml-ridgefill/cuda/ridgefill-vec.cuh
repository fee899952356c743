#pragma once

// Few rows: the op streams the codes once and is bound by memory. Four warps share two outputs, each with a quarter of
// the inputs; a lane takes 16 codes at a time and keeps its own f32 sum per output and row.

#include "ridgefill-problem.cuh"

constexpr int RIDGEFILL_VEC_MAX_ROWS = 4;
constexpr int RIDGEFILL_VEC_WARPS    = 4;
constexpr int RIDGEFILL_VEC_OUTS     = 2; // per block

template <int ROWS>
static __global__ void __launch_bounds__(32*RIDGEFILL_VEC_WARPS) ridgefill_vec_kernel(ridgefill_problem p, ridgefill_quantized x) {
    const int lane = threadIdx.x;
    const int warp = threadIdx.y;
    const int out0 = blockIdx.x*RIDGEFILL_VEC_OUTS;

    float sum[RIDGEFILL_VEC_OUTS][ROWS] = {};

    // n_in is a multiple of 32, so 16 codes lie in one group and inside the row
#pragma unroll 2
    for (int i = (warp*32 + lane)*16; i < p.n_in; i += RIDGEFILL_VEC_WARPS*32*16) {
        const int g = i/RIDGEFILL_GROUP;
        int4  codes[RIDGEFILL_VEC_OUTS];
        float scale[RIDGEFILL_VEC_OUTS];
#pragma unroll
        for (int o = 0; o < RIDGEFILL_VEC_OUTS; o++) {
            const int64_t out = min(out0 + o, p.n_out - 1);
            codes[o] = *reinterpret_cast<const int4 *>(p.codes + out*p.n_in + i);
            scale[o] = ridgefill_bf16(p.scale[out*p.n_groups + g]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int4  q       = *reinterpret_cast<const int4 *>(x.q + int64_t(r)*p.n_groups*RIDGEFILL_GROUP + i);
            const float x_scale = x.scale[int64_t(g)*x.scale_stride + ridgefill_slot(r)];
#pragma unroll
            for (int o = 0; o < RIDGEFILL_VEC_OUTS; o++) {
                int dot = ridgefill_dot4(codes[o].x, q.x, RIDGEFILL_DOT_START);
                dot = ridgefill_dot4(codes[o].y, q.y, dot);
                dot = ridgefill_dot4(codes[o].z, q.z, dot);
                dot = ridgefill_dot4(codes[o].w, q.w, dot);
                sum[o][r] = ridgefill_add_group(scale[o], x_scale, ridgefill_dot_value(dot), sum[o][r]);
            }
        }
    }

    __shared__ float parts[RIDGEFILL_VEC_WARPS][RIDGEFILL_VEC_OUTS*ROWS];
#pragma unroll
    for (int o = 0; o < RIDGEFILL_VEC_OUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2) {
                sum[o][r] += ridgefill_shuffle_xor(sum[o][r], mask);
            }
            if (lane == 0) {
                parts[warp][o*ROWS + r] = sum[o][r];
            }
        }
    }
    __syncthreads();
    if (warp != 0 || lane >= RIDGEFILL_VEC_OUTS*ROWS) {
        return;
    }
    const int out = out0 + lane/ROWS;
    if (out < p.n_out) {
        float y = p.bias ? p.bias[out] : 0.0f;
        for (int w = 0; w < RIDGEFILL_VEC_WARPS; w++) {
            y += parts[w][lane];
        }
        p.y[int64_t(lane%ROWS)*p.n_out + out] = y;
    }
}

static void ridgefill_vec(const ridgefill_problem & p, const ridgefill_quantized & x, cudaStream_t stream) {
    const dim3 grid((p.n_out + RIDGEFILL_VEC_OUTS - 1)/RIDGEFILL_VEC_OUTS);
    const dim3 block(32, RIDGEFILL_VEC_WARPS);
    switch (p.n_rows) {
        case 1: ridgefill_vec_kernel<1><<<grid, block, 0, stream>>>(p, x); break;
        case 2: ridgefill_vec_kernel<2><<<grid, block, 0, stream>>>(p, x); break;
        case 3: ridgefill_vec_kernel<3><<<grid, block, 0, stream>>>(p, x); break;
        case 4: ridgefill_vec_kernel<4><<<grid, block, 0, stream>>>(p, x); break;
    }
}
