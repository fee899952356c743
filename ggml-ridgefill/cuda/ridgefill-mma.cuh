#pragma once

// The one header that knows instruction sets: a product of 16 rows of x and 16 outputs over 32 inputs,
//
//   acc[row][out] += sum over k of x[row][k] * codes[out][k]
//
// and where a lane's part of `acc` lies. Below, a "line" is a row of x or an output: 128 bytes of shared memory whose
// 16-byte chunks are stored at chunk ^ (line % 8), so that the loads of a warp spread over all banks.
//
//   RIDGEFILL_LANES   lanes that work together
//   N_ROWS, N_OUTS    a lane owns the elements at N_ROWS rows times N_OUTS outputs
//   lane_row, lane_out   these rows and outputs, 0 to 15
//   load_x, load_codes   16 lines from `line` (a multiple of 16) on, bytes k to k + 31
//   multiply

#include "ridgefill-problem.cuh"

#if defined(RIDGEFILL_HIP)
#    if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#        define RIDGEFILL_MFMA
#    elif defined(__GFX12__)
#        define RIDGEFILL_WMMA 12
#    elif defined(__GFX11__)
#        define RIDGEFILL_WMMA 11
#    endif
#    if defined(RIDGEFILL_MFMA) || defined(__GFX9__) || defined(__GFX8__)
#        define RIDGEFILL_LANES 64
#    endif
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
#    define RIDGEFILL_MMA
#endif
#ifndef RIDGEFILL_LANES
#    define RIDGEFILL_LANES 32
#endif

namespace ridgefill_mma {

constexpr int LANES = RIDGEFILL_LANES;
constexpr int LINE  = 128; // bytes

static __device__ __forceinline__ int chunk_at(int line, int chunk) {
    return line*LINE + ((chunk ^ (line & 7)) << 4);
}

#if defined(RIDGEFILL_MMA)
//
// NVIDIA, Turing and later
//
constexpr int N_ROWS = 2, N_OUTS = 4;

static __device__ __forceinline__ int lane_row(int lane, int i) { return lane/4 + 8*i; }
static __device__ __forceinline__ int lane_out(int lane, int i) { return lane%4*2 + (i & 1) + (i >> 1)*8; }

// Four 8 x 16 byte blocks: x has lines 0-7 and 8-15 of the first 16 bytes, then of the second; codes have both 16 bytes
// of lines 0-7, then of 8-15, so that what one instruction takes lies in neighbouring registers.
struct operand { int part[4]; };

static __device__ __forceinline__ void load_blocks(operand & o, const int8_t * from) {
    const unsigned address = __cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(o.part[0]), "=r"(o.part[1]), "=r"(o.part[2]), "=r"(o.part[3]) : "r"(address));
}

static __device__ __forceinline__ void load_x(operand & o, const int8_t * lines, int line, int k, int lane) {
    load_blocks(o, lines + chunk_at(line + lane%16, k/16 + lane/16));
}

static __device__ __forceinline__ void load_codes(operand & o, const int8_t * lines, int line, int k, int lane) {
    load_blocks(o, lines + chunk_at(line + lane%8 + lane/16*8, k/16 + lane/8%2));
}

static __device__ __forceinline__ void multiply(int (&acc)[N_ROWS][N_OUTS], const operand & x, const operand & codes) {
#pragma unroll
    for (int half = 0; half < 2; half++) { // outputs 0-7 and 8-15
        int & a00 = acc[0][2*half], & a01 = acc[0][2*half + 1], & a10 = acc[1][2*half], & a11 = acc[1][2*half + 1];
        // sums in and sums out are apart, so that a start from zero takes no register to hold it
#    if __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
            : "=r"(a00), "=r"(a01), "=r"(a10), "=r"(a11)
            : "r"(x.part[0]), "r"(x.part[1]), "r"(x.part[2]), "r"(x.part[3]), "r"(codes.part[2*half]), "r"(codes.part[2*half + 1]),
              "r"(a00), "r"(a01), "r"(a10), "r"(a11));
#    else // Turing has the small shape only
#pragma unroll
        for (int k = 0; k < 2; k++) {
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
                : "=r"(a00), "=r"(a01) : "r"(x.part[2*k]), "r"(codes.part[2*half + k]), "r"(a00), "r"(a01));
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
                : "=r"(a10), "=r"(a11) : "r"(x.part[2*k + 1]), "r"(codes.part[2*half + k]), "r"(a10), "r"(a11));
        }
#    endif
    }
}

#else
//
// Everything else gives a lane one output (lane % 16) and a run of rows. The order of the inputs inside the 32 is free
// as long as x and codes agree, so a lane reads its bytes with one wide load.
//
constexpr int N_ROWS = 256/LANES, N_OUTS = 1;

#    if defined(RIDGEFILL_WMMA) && RIDGEFILL_WMMA == 11
static __device__ __forceinline__ int lane_row(int lane, int i) { return 2*i + lane/16; }
#    else
static __device__ __forceinline__ int lane_row(int lane, int i) { return lane/16*N_ROWS + i; }
#    endif
static __device__ __forceinline__ int lane_out(int lane, int) { return lane%16; }

#    if defined(RIDGEFILL_WMMA) || defined(RIDGEFILL_MFMA)
typedef int vec2 __attribute__((ext_vector_type(2)));
typedef int vec4 __attribute__((ext_vector_type(4)));
typedef int vec8 __attribute__((ext_vector_type(8)));
#    endif

#    if defined(RIDGEFILL_WMMA) && RIDGEFILL_WMMA == 12
struct operand { vec2 part[2]; };

static __device__ __forceinline__ void load(operand & o, const int8_t * lines, int line, int k, int lane) {
    const vec4 v = *reinterpret_cast<const vec4 *>(lines + chunk_at(line + lane%16, k/16 + lane/16));
    o.part[0] = v.xy;
    o.part[1] = v.zw;
}

static __device__ __forceinline__ void multiply(int (&acc)[N_ROWS][N_OUTS], const operand & x, const operand & codes) {
    vec8 & d = reinterpret_cast<vec8 &>(acc);
    d = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x.part[0], true, codes.part[0], d, false);
    d = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x.part[1], true, codes.part[1], d, false);
}

#    elif defined(RIDGEFILL_WMMA)
struct operand { vec4 part[2]; }; // both halves of the wave hold the same

static __device__ __forceinline__ void load(operand & o, const int8_t * lines, int line, int k, int lane) {
    o.part[0] = *reinterpret_cast<const vec4 *>(lines + chunk_at(line + lane%16, k/16));
    o.part[1] = *reinterpret_cast<const vec4 *>(lines + chunk_at(line + lane%16, k/16 + 1));
}

static __device__ __forceinline__ void multiply(int (&acc)[N_ROWS][N_OUTS], const operand & x, const operand & codes) {
    vec8 & d = reinterpret_cast<vec8 &>(acc);
    d = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x.part[0], true, codes.part[0], d, false);
    d = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x.part[1], true, codes.part[1], d, false);
}

#    elif defined(RIDGEFILL_MFMA)
struct operand { int64_t bytes; };

static __device__ __forceinline__ void load(operand & o, const int8_t * lines, int line, int k, int lane) {
    o.bytes = *reinterpret_cast<const int64_t *>(lines + chunk_at(line + lane%16, k/16 + lane/32) + lane/16%2*8);
}

static __device__ __forceinline__ void multiply(int (&acc)[N_ROWS][N_OUTS], const operand & x, const operand & codes) {
    vec4 & d = reinterpret_cast<vec4 &>(acc);
#        if defined(__gfx942__) || defined(__gfx950__)
    d = __builtin_amdgcn_mfma_i32_16x16x32_i8(x.bytes, codes.bytes, d, 0, 0, 0);
#        else
    d = __builtin_amdgcn_mfma_i32_16x16x16i8(int(x.bytes), int(codes.bytes), d, 0, 0, 0);
    d = __builtin_amdgcn_mfma_i32_16x16x16i8(int(x.bytes >> 32), int(codes.bytes >> 32), d, 0, 0, 0);
#        endif
}

#    else // 4-byte dot products; x stays in shared memory, 16 lanes read the same row
struct operand { const int8_t * lines; int line, k; };

static __device__ __forceinline__ void load(operand & o, const int8_t * lines, int line, int k, int) {
    o = { lines, line, k };
}

static __device__ __forceinline__ void multiply(int (&acc)[N_ROWS][N_OUTS], const operand & x, const operand & codes) {
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
        const int4 c = *reinterpret_cast<const int4 *>(codes.lines + chunk_at(codes.line + lane%16, codes.k/16 + chunk));
#pragma unroll
        for (int i = 0; i < N_ROWS; i++) {
            const int4 v = *reinterpret_cast<const int4 *>(x.lines + chunk_at(x.line + lane_row(lane, i), x.k/16 + chunk));
            int sum = acc[i][0];
            sum = ridgefill_dot4(c.x, v.x, sum);
            sum = ridgefill_dot4(c.y, v.y, sum);
            sum = ridgefill_dot4(c.z, v.z, sum);
            acc[i][0] = ridgefill_dot4(c.w, v.w, sum);
        }
    }
}
#    endif

static __device__ __forceinline__ void load_x(operand & o, const int8_t * lines, int line, int k, int lane) {
    load(o, lines, line, k, lane);
}

static __device__ __forceinline__ void load_codes(operand & o, const int8_t * lines, int line, int k, int lane) {
    load(o, lines, line, k, lane);
}
#endif

} // namespace ridgefill_mma
