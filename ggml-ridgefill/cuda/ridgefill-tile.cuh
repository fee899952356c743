#pragma once

// The product on any device: a block makes BO outputs x BR rows, its warps WO x WR each. A stage of shared memory holds
// one group of 128 inputs of the block's codes and x; integer sums live for one group, then go into f32 sums with the
// scales. What differs between devices is in ridgefill-mma.cuh and in how a stage is filled.

#include "ridgefill-mma.cuh"
#include "ridgefill-split.cuh"

constexpr int RIDGEFILL_TILE_THREADS = 256;

#if !defined(RIDGEFILL_HIP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#    define RIDGEFILL_ASYNC // copies that bypass registers: three stages in a ring
#endif
constexpr int RIDGEFILL_ASYNC_STAGES = 3;

#if defined(RIDGEFILL_ASYNC)
static __device__ __forceinline__ void ridgefill_copy_async(int8_t * to, const int8_t * from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
#endif

template <int BO, int BR, int WO32, int WR32>
static __global__ void __launch_bounds__(RIDGEFILL_TILE_THREADS) ridgefill_tile_kernel(
        ridgefill_problem p, ridgefill_quantized x, ridgefill_split split) {
    using namespace ridgefill_mma;
    // half as many, wider waves: each takes two of the warps' tiles
    constexpr int WR = LANES == 64 && WR32 < BR ? 2*WR32 : WR32;
    constexpr int WO = LANES == 64 && WR32 == BR ? 2*WO32 : WO32;
    static_assert((BO/WO)*(BR/WR)*LANES == RIDGEFILL_TILE_THREADS, "warps cover the block");
    static_assert(BO + BR <= RIDGEFILL_TILE_THREADS, "one scale for every thread");
    constexpr int TO = WO/16, TR = WR/16;
    [[maybe_unused]] constexpr int STAGE = (BO + BR)*LINE;
    constexpr int STEP   = RIDGEFILL_TILE_THREADS/8; // lines that the block copies at a time, 8 chunks of 16 bytes each
    constexpr int COPIES = (BO + BR)/STEP;
    static_assert(BO % STEP == 0 && BR % STEP == 0, "a copy is codes or x for all threads");

    extern __shared__ __align__(128) int8_t ridgefill_tile_memory[];
    __shared__ float scales[2][BO + BR]; // of this group and the next
    int8_t * memory = ridgefill_tile_memory;

    const int lane   = threadIdx.x % LANES;
    const int warp   = threadIdx.x / LANES;
    const int n_o    = (p.n_out + BO - 1)/BO;
    const int out0   = blockIdx.x%n_o*BO;
    const int row0   = blockIdx.x/n_o*BR;
    const int part   = blockIdx.y;
    const int begin  = p.n_groups*part/split.parts;
    const int end    = p.n_groups*(part + 1)/split.parts;
    const int warp_o = warp%(BO/WO)*WO; // inside the block
    const int warp_r = warp/(BO/WO)*WR;

    float sum[TR][TO][N_ROWS][N_OUTS];
#pragma unroll
    for (int to = 0; to < TO; to++) {
#pragma unroll
        for (int o = 0; o < N_OUTS; o++) {
            const int   out  = out0 + warp_o + 16*to + lane_out(lane, o);
            const float bias = p.bias && part == 0 && out < p.n_out ? p.bias[out] : 0.0f;
#pragma unroll
            for (int i = 0; i < TR*N_ROWS; i++) {
                sum[i/N_ROWS][to][i%N_ROWS][o] = bias;
            }
        }
    }

    // What this thread copies: chunk `chunk` of lines line, line + STEP, ... Lines past the end repeat the last one; what
    // they give is never written.
    const int k_padded = p.n_groups*RIDGEFILL_GROUP;
    const int line     = threadIdx.x/8;
    const int chunk    = threadIdx.x%8;
    const int8_t * codes_tile = p.codes + int64_t(out0)*p.n_in;
    const int8_t * x_tile     = x.q + int64_t(row0)*k_padded;
    int offset[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        offset[i] = i*STEP < BO ? min(i*STEP + line, p.n_out - 1 - out0)*p.n_in
                                : min(i*STEP - BO + line, p.n_rows - 1 - row0)*k_padded;
    }
    const auto source = [&](int i, int g) {
        const int k = g*RIDGEFILL_GROUP + chunk*16;
        // beyond a short last group any codes will do, x is zero there
        return i*STEP < BO ? codes_tile + (offset[i] + (k < p.n_in ? k : 0)) : x_tile + (offset[i] + k);
    };
    const auto target = [&](int8_t * stage, int i) { return stage + chunk_at(i*STEP + line, chunk); };

    // One scale: of an output or of a row, the latter in the order of ridgefill_slot.
    const auto fetch_scale = [&](int g) {
        const int t = threadIdx.x;
        if (g >= end || t >= BO + BR) {
            return 0.0f;
        }
        return t < BO ? ridgefill_bf16(p.scale[int64_t(min(out0 + t, p.n_out - 1))*p.n_groups + g])
                      : x.scale[int64_t(g)*x.scale_stride + row0 + t - BO];
    };
    const auto put_scale = [&](int g, float scale) {
        if (threadIdx.x < BO + BR) {
            scales[g & 1][threadIdx.x] = scale;
        }
    };

    const auto compute = [&](const int8_t * stage, int g) {
        int dot[TR][TO][N_ROWS][N_OUTS];
#pragma unroll
        for (int i = 0; i < TR*TO*N_ROWS*N_OUTS; i++) {
            (&dot[0][0][0][0])[i] = RIDGEFILL_DOT_START;
        }
#pragma unroll
        for (int k = 0; k < RIDGEFILL_GROUP; k += 32) {
            operand rows[TR];
#pragma unroll
            for (int tr = 0; tr < TR; tr++) {
                load_x(rows[tr], stage + BO*LINE, warp_r + 16*tr, k, lane);
            }
#pragma unroll
            for (int to = 0; to < TO; to++) {
                operand codes;
                load_codes(codes, stage, warp_o + 16*to, k, lane);
#pragma unroll
                for (int tr = 0; tr < TR; tr++) {
                    multiply(dot[tr][to], rows[tr], codes);
                }
            }
        }

        const float * scale = scales[g & 1];
        float scale_x[TR][N_ROWS];
#pragma unroll
        for (int i = 0; i < TR*N_ROWS; i++) {
            scale_x[i/N_ROWS][i%N_ROWS] = scale[BO + warp_r + i/N_ROWS*16 + ridgefill_slot(lane_row(lane, i%N_ROWS))];
        }
#pragma unroll
        for (int to = 0; to < TO; to++) {
#pragma unroll
            for (int o = 0; o < N_OUTS; o++) {
                const float scale_code = scale[warp_o + 16*to + lane_out(lane, o)];
#pragma unroll
                for (int i = 0; i < TR*N_ROWS; i++) {
                    const int tr = i/N_ROWS, r = i%N_ROWS;
                    sum[tr][to][r][o] = ridgefill_add_group(scale_code, scale_x[tr][r], ridgefill_dot_value(dot[tr][to][r][o]), sum[tr][to][r][o]);
                }
            }
        }
    };

    put_scale(begin, fetch_scale(begin));
    float next_scale = fetch_scale(begin + 1);
#if defined(RIDGEFILL_ASYNC)
    constexpr int STAGES = RIDGEFILL_ASYNC_STAGES;
    const auto fetch = [&](int g, int slot) {
        if (g < end) {
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                ridgefill_copy_async(target(memory + slot*STAGE, i), source(i, g));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int i = 0; i < STAGES - 1; i++) {
        fetch(begin + i, i);
    }
    int slot = 0;
    for (int g = begin; g < end; g++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
        __syncthreads(); // group g has arrived for all, and all are done with the stage and the scales that come next
        fetch(g + STAGES - 1, slot == 0 ? STAGES - 1 : slot - 1);
        put_scale(g + 1, next_scale);
        next_scale = fetch_scale(g + 2);
        compute(memory + slot*STAGE, g);
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }
#else
    int4 next[COPIES];
    const auto fetch = [&](int g) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            next[i] = *reinterpret_cast<const int4 *>(source(i, g));
        }
    };
    fetch(begin);
    for (int g = begin; g < end; g++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            *reinterpret_cast<int4 *>(target(memory, i)) = next[i];
        }
        put_scale(g + 1, next_scale);
        next_scale = fetch_scale(g + 2);
        __syncthreads();
        if (g + 1 < end) {
            fetch(g + 1);
        }
        compute(memory, g);
    }
#endif

    float * y = ridgefill_split_target(p, split, part);
#pragma unroll
    for (int i = 0; i < TR*N_ROWS; i++) {
        const int row = row0 + warp_r + i/N_ROWS*16 + lane_row(lane, i%N_ROWS);
#pragma unroll
        for (int j = 0; j < TO*N_OUTS; j++) {
            const int out = out0 + warp_o + j/N_OUTS*16 + lane_out(lane, j%N_OUTS);
            if (row < p.n_rows && out < p.n_out) {
                y[int64_t(row)*p.n_out + out] = sum[i/N_ROWS][j/N_OUTS][i%N_ROWS][j%N_OUTS];
            }
        }
    }
}

//
// launch
//

#if defined(RIDGEFILL_HIP) // the registers of a wave would not hold 64 x 32
constexpr int RIDGEFILL_TILE_ROWS = 64, RIDGEFILL_TILE_WARP_OUTS = 32;
#else
constexpr int RIDGEFILL_TILE_ROWS = 128, RIDGEFILL_TILE_WARP_OUTS = 64;
#endif

struct ridgefill_tile_plan {
    bool small; // 64 outputs x 32 rows instead of 128 x RIDGEFILL_TILE_ROWS
    int  tiles, parts;
};

static ridgefill_tile_plan ridgefill_tile_choose(const ridgefill_problem & p, int n_processors) {
    ridgefill_tile_plan plan = {};
    const auto tiles = [&](int bo, int br) { return (p.n_out + bo - 1)/bo*((p.n_rows + br - 1)/br); };
    plan.small = p.n_rows <= 32 || tiles(128, RIDGEFILL_TILE_ROWS) < n_processors/2;
    plan.tiles = plan.small ? tiles(64, 32) : tiles(128, RIDGEFILL_TILE_ROWS);
    // parts of at least 4 groups, two small blocks or one large one on every processor
    plan.parts = 1;
    while (plan.tiles*(plan.parts + 1) <= (plan.small ? 2 : 1)*n_processors && p.n_groups/(plan.parts + 1) >= 4) {
        plan.parts++;
    }
    return plan;
}

template <int BO, int BR, int WO, int WR>
static void ridgefill_tile_launch(const ridgefill_problem & p, const ridgefill_quantized & x, const ridgefill_split & split,
                                  int tiles, bool async, cudaStream_t stream) {
    const size_t bytes = size_t(BO + BR)*RIDGEFILL_GROUP*(async ? RIDGEFILL_ASYNC_STAGES : 1);
    const auto kernel = ridgefill_tile_kernel<BO, BR, WO, WR>;
    if (bytes > 48*1024) {
        (void) cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
    }
    kernel<<<dim3(tiles, split.parts), RIDGEFILL_TILE_THREADS, bytes, stream>>>(p, x, split);
}

// async: the device is an NVIDIA Ampere or later
static void ridgefill_tile(const ridgefill_problem & p, const ridgefill_quantized & x, const ridgefill_split & split,
                           const ridgefill_tile_plan & plan, bool async, cudaStream_t stream) {
    if (plan.small) {
        ridgefill_tile_launch<64, 32, 16, 16>(p, x, split, plan.tiles, async, stream);
    } else {
        ridgefill_tile_launch<128, RIDGEFILL_TILE_ROWS, RIDGEFILL_TILE_WARP_OUTS, 32>(p, x, split, plan.tiles, async, stream);
    }
    ridgefill_add_parts(p, split, stream);
}
