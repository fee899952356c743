#pragma once

// x to int8, once per op: each row and group of 128 gets the scale absmax / 127, values are rounded half to even.

#include "ridgefill-problem.cuh"

constexpr int RIDGEFILL_QUANTIZE_ROWS   = 8; // per block, one for each 32 lanes
constexpr int RIDGEFILL_QUANTIZE_GROUPS = 2; // per block; 4 was 4 to 25 % slower, the more the smaller x is

// x that is not read again soon should not push the results out of the L2 cache
static __device__ __forceinline__ float4 ridgefill_load_once(const float4 * p) {
#if defined(RIDGEFILL_HIP)
    return *p;
#else
    return __ldcs(p);
#endif
}

// ALIGNED: rows of x start at multiples of 16 bytes. ONCE: x is larger than the cache
template <bool ALIGNED, bool ONCE>
static __global__ void __launch_bounds__(32*RIDGEFILL_QUANTIZE_ROWS) ridgefill_quantize_kernel(
        const float * __restrict__ x, int64_t x_stride, int n_in, int n_rows, int n_groups,
        int8_t * __restrict__ q, float * __restrict__ scale, int scale_stride) {
#if !defined(RIDGEFILL_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;"); // a multiply that can wait for this kernel itself may start
#endif
    const int lane = threadIdx.x;
    const int row  = blockIdx.x*RIDGEFILL_QUANTIZE_ROWS + threadIdx.y;
    const int g0   = blockIdx.y*RIDGEFILL_QUANTIZE_GROUPS;

    if (row >= n_rows) {
        return;
    }

    float4 v[RIDGEFILL_QUANTIZE_GROUPS];
#pragma unroll
    for (int j = 0; j < RIDGEFILL_QUANTIZE_GROUPS; j++) {
        const int     i    = (g0 + j)*RIDGEFILL_GROUP + 4*lane;
        const float * from = x + row*x_stride + i;
        v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < n_in) { // n_in is a multiple of 32: all four or none
            v[j] = !ALIGNED ? make_float4(from[0], from[1], from[2], from[3])
                 : ONCE     ? ridgefill_load_once(reinterpret_cast<const float4 *>(from))
                 :            *reinterpret_cast<const float4 *>(from);
        }
    }

#pragma unroll
    for (int j = 0; j < RIDGEFILL_QUANTIZE_GROUPS; j++) {
        const int g = g0 + j;
        if (g >= n_groups) {
            return;
        }
        // absolute values compare like their bits, and NaN and infinity come out on top
        uint32_t top = 0;
        for (float value : { v[j].x, v[j].y, v[j].z, v[j].w }) {
            top = max(top, __float_as_uint(value) & 0x7fffffff);
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
            top = max(top, ridgefill_shuffle_xor(top, mask));
        }
        const float absmax  = __uint_as_float(top);
        const float inverse = __fdiv_rn(127.0f, absmax);
        const bool  finite  = top < 0x7f800000;
        // below about 4e-37 the reciprocal overflows: such a group counts as zero
        const bool  usable  = finite && (__float_as_uint(inverse) & 0x7fffffff) < 0x7f800000;

        char4 rounded = make_char4(0, 0, 0, 0);
        if (usable) {
            rounded = make_char4(__float2int_rn(__fmul_rn(v[j].x, inverse)), __float2int_rn(__fmul_rn(v[j].y, inverse)),
                                 __float2int_rn(__fmul_rn(v[j].z, inverse)), __float2int_rn(__fmul_rn(v[j].w, inverse)));
        }
        reinterpret_cast<char4 *>(q + (int64_t(row)*n_groups + g)*RIDGEFILL_GROUP)[lane] = rounded;
        if (lane == 0) {
            scale[int64_t(g)*scale_stride + ridgefill_slot(row)] =
                usable ? __fdiv_rn(absmax, 127.0f) : finite ? 1.0f : __uint_as_float(0x7fc00000);
        }
    }
}

static void ridgefill_quantize(const ridgefill_problem & p, const ridgefill_quantized & out, cudaStream_t stream) {
    const bool aligned = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.x_stride % 4 == 0;
    const dim3 grid((p.n_rows + RIDGEFILL_QUANTIZE_ROWS - 1)/RIDGEFILL_QUANTIZE_ROWS,
                    (p.n_groups + RIDGEFILL_QUANTIZE_GROUPS - 1)/RIDGEFILL_QUANTIZE_GROUPS);
    const dim3 block(32, RIDGEFILL_QUANTIZE_ROWS);
    const bool once    = int64_t(p.n_rows)*p.n_in > (8 << 20); // 32 MiB
    const auto kernel  = !aligned ? ridgefill_quantize_kernel<false, false>
                       : once     ? ridgefill_quantize_kernel<true, true>
                       :            ridgefill_quantize_kernel<true, false>;
    kernel<<<grid, block, 0, stream>>>(p.x, p.x_stride, p.n_in, p.n_rows, p.n_groups, const_cast<int8_t *>(out.q),
                                       const_cast<float *>(out.scale), out.scale_stride);
}
