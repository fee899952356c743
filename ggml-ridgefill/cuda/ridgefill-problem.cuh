#pragma once

// What the kernels share: the problem, the layout of quantised x, bf16 and int8 helpers. Needs nothing of ggml, so that
// the kernels also build alone (tests/op/lab-ridgefill.cu, tools/check_hip.sh). HIP builds the same files.

#include <cstdint>

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
#    include <hip/hip_runtime.h>
#    define RIDGEFILL_HIP
#    ifndef cudaStream_t // upstream's vendors/hip.h maps these too
#        define cudaStream_t hipStream_t
#        define cudaFuncSetAttribute hipFuncSetAttribute
#        define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#    endif
#else
#    include <cuda_runtime.h>
#endif

constexpr int RIDGEFILL_GROUP = 128;

struct ridgefill_problem {
    const int8_t   * codes;    // [n_out][n_in]
    const uint16_t * scale;    // [n_out][n_groups], bf16
    const float    * bias;     // [n_out] or NULL
    const float    * x;        // [n_rows][x_stride]
    int64_t          x_stride; // floats
    float          * y;        // [n_rows][n_out]
    int n_in, n_out, n_rows, n_groups;
};

// x after quantisation: every group is padded to 128 values with zeros, so that kernels need no short last group.
struct ridgefill_quantized {
    const int8_t * q;            // [n_rows][n_groups*128]
    const float  * scale;        // [n_groups][scale_stride], rows in the order of ridgefill_slot
    int            scale_stride; // a multiple of 16
};

// Where a row's scale lies. Within 16 rows the order is that of a tensor core's accumulator: a lane owns rows 2t, 2t + 1,
// 2t + 8 and 2t + 9, and reads their scales with one 16-byte load.
static __host__ __device__ constexpr int ridgefill_slot(int row) {
    return (row & ~15) | (row >> 1 & 3) << 2 | (row >> 3 & 1) << 1 | (row & 1);
}

static __device__ __forceinline__ float ridgefill_bf16(uint16_t bits) {
    return __uint_as_float(uint32_t(bits) << 16);
}

// One group's contribution, groups in order from the bias on. The scale of the codes comes last: a lane's neighbouring
// elements share it, so it stays in the operand cache, and on Hopper reads of registers are what limits the multiply.
static __device__ __forceinline__ float ridgefill_add_group(float scale_code, float scale_x, float dot, float sum) {
    return fmaf(scale_code, __fmul_rn(scale_x, dot), sum);
}

// Before Hopper, NVIDIA converts integers at an eighth of the rate of its other f32 instructions. Sums of one group lie
// below 2^22 in size (128*128*127), so they start from the bits of 1.5*2^23 instead of 0: read as f32, the sum is then
// 1.5*2^23 + dot. (Not for Hopper's own product, where starting from anything but zero takes an instruction per sum.)
#if defined(RIDGEFILL_HIP)
constexpr int RIDGEFILL_DOT_START = 0;
static __device__ __forceinline__ float ridgefill_dot_value(int dot) { return float(dot); }
#else
constexpr int RIDGEFILL_DOT_START = 0x4b400000;
static __device__ __forceinline__ float ridgefill_dot_value(int dot) { return __fadd_rn(__int_as_float(dot), -12582912.0f); }
#endif

// sum + a . b over 4 bytes each
static __device__ __forceinline__ int ridgefill_dot4(int a, int b, int sum) {
#if defined(RIDGEFILL_HIP)
#    if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || \
        (defined(__GFX10__) && !defined(__gfx1010__) && !defined(__gfx1013__))
    return __builtin_amdgcn_sdot4(a, b, sum, false);
#    elif defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, sum, false);
#    else
    const char4 va = reinterpret_cast<const char4 &>(a), vb = reinterpret_cast<const char4 &>(b);
    return sum + va.x*vb.x + va.y*vb.y + va.z*vb.z + va.w*vb.w;
#    endif
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 610
    const char4 va = reinterpret_cast<const char4 &>(a), vb = reinterpret_cast<const char4 &>(b);
    return sum + va.x*vb.x + va.y*vb.y + va.z*vb.z + va.w*vb.w;
#else
    return __dp4a(a, b, sum);
#endif
}

// The lanes that exchange values are 32 on every device; wider waves hold two such halves.
template <typename T>
static __device__ __forceinline__ T ridgefill_shuffle_xor(T value, int mask) {
#if defined(RIDGEFILL_HIP)
    return __shfl_xor(value, mask, 32);
#else
    return __shfl_xor_sync(0xffffffff, value, mask, 32);
#endif
}
