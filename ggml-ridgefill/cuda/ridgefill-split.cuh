#pragma once

// When there are too few tiles to fill the device, several blocks share one, each with a part of the groups. Every block
// leaves its sums in memory; a second kernel adds the parts in their order, so that the result is always the same.
// (The last block of a tile to arrive could add them instead. Measured: it alone, with 128 x 128 values to fetch, takes
// longer than the launch that this saves.)

#include "ridgefill-problem.cuh"

struct ridgefill_split {
    int     parts; // 1: no sharing
    float * sums;  // [parts][n_rows][n_out]
};

// Where a block writes.
static __device__ __forceinline__ float * ridgefill_split_target(const ridgefill_problem & p, const ridgefill_split & split, int part) {
    return split.parts == 1 ? p.y : split.sums + part*(int64_t(p.n_rows)*p.n_out);
}

template <typename T>
static __global__ void __launch_bounds__(256) ridgefill_add_parts_kernel(const T * __restrict__ sums, T * __restrict__ y, int64_t n, int parts) {
    const int64_t i = int64_t(blockIdx.x)*256 + threadIdx.x;
    if (i >= n) {
        return;
    }
    T sum = sums[i];
#pragma unroll 4
    for (int part = 1; part < parts; part++) {
        const T more = sums[part*n + i];
        if constexpr (sizeof(T) == 16) {
            sum.x += more.x;
            sum.y += more.y;
            sum.z += more.z;
            sum.w += more.w;
        } else {
            sum += more;
        }
    }
    y[i] = sum;
}

static void ridgefill_add_parts(const ridgefill_problem & p, const ridgefill_split & split, cudaStream_t stream) {
    if (split.parts == 1) {
        return;
    }
    const int64_t n = int64_t(p.n_rows)*p.n_out;
    if (n % 4 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0) {
        ridgefill_add_parts_kernel<<<(n/4 + 255)/256, 256, 0, stream>>>(
            reinterpret_cast<const float4 *>(split.sums), reinterpret_cast<float4 *>(p.y), n/4, split.parts);
    } else {
        ridgefill_add_parts_kernel<<<(n + 255)/256, 256, 0, stream>>>(split.sums, p.y, n, split.parts);
    }
}
