#pragma once

// The product on Hopper. A block makes 128 outputs x BN rows: one producer thread keeps a ring of stages filled (a stage is
// one group of 128 inputs of codes and x, and the scales of x), two warpgroups of 64 outputs each multiply.
//
// A warpgroup's integer sums of one group must be turned into f32 and scaled, nearly as much work for the f32 units as the
// product is for the tensor cores. Two things let both run at once. The loop over the ring is unrolled, and where registers
// allow it the compiler starts the next product before it scales the last one. With TURNS a warpgroup starts its product
// only when the other's is nearly done. docs/kernels.md says what was measured.

#include "ridgefill-wgmma.cuh"

constexpr int RIDGEFILL_HOPPER_OUTS    = 128; // of a block
constexpr int RIDGEFILL_HOPPER_THREADS = 384; // producer warpgroup, two consumer warpgroups

template <int BN>
struct ridgefill_hopper_stage {
    static constexpr int CODES  = RIDGEFILL_HOPPER_OUTS*RIDGEFILL_GROUP; // bytes
    static constexpr int X      = BN*RIDGEFILL_GROUP;
    static constexpr int SCALE  = BN*int(sizeof(float));
    static constexpr int BYTES  = CODES + X + SCALE;
    static constexpr int COUNT  = 4; // in the ring
    static constexpr int SHARED = COUNT*BYTES + 256; // and the barriers
};

// Who makes what. Whole tiles go round: block b makes b, b + blocks, ... Those that would leave most blocks idle at the
// end are shared: their groups form one long line, of which every block gets an equal run. A run touches two tiles at most;
// what a block has of a tile that it does not make alone goes to `sums`, and a second kernel adds the pieces in order.
struct ridgefill_hopper_work {
    int     n_o;      // tiles along the outputs; a tile's number is o + n_o*r
    int     n_whole, n_shared;
    float * sums;     // [blocks][2][BN/2][256 threads]
};

struct ridgefill_hopper_unit {
    int tile, begin, end; // groups
    int piece;            // 0 or 1: where in `sums`; -1: the tile is complete
};

// In steps of four groups where that is possible, as the loop takes four at a time.
static __device__ __forceinline__ int ridgefill_hopper_run_begin(const ridgefill_hopper_work & work, int n_groups, int block) {
    const int step = n_groups % 4 == 0 ? 4 : 1;
    return work.n_shared*(n_groups/step)*block/int(gridDim.x)*step;
}

// Unit i of a block; begin == end: there is none.
static __device__ __forceinline__ ridgefill_hopper_unit ridgefill_hopper_get_unit(const ridgefill_hopper_work & work, int n_groups, int i) {
    const int block = blockIdx.x, blocks = gridDim.x;
    if (block + i*blocks < work.n_whole) {
        return { block + i*blocks, 0, n_groups, -1 };
    }
    const int n_own = work.n_whole > block ? (work.n_whole - block + blocks - 1)/blocks : 0;
    const int run   = ridgefill_hopper_run_begin(work, n_groups, block);
    const int stop  = ridgefill_hopper_run_begin(work, n_groups, block + 1);
    const int tile  = run/n_groups + i - n_own;
    const int begin = max(run, tile*n_groups), end = min(stop, (tile + 1)*n_groups);
    if (begin >= end) {
        return { 0, 0, 0, -1 };
    }
    return { work.n_whole + tile, begin - tile*n_groups, end - tile*n_groups, end - begin == n_groups ? -1 : i - n_own };
}

template <int BN, bool TURNS>
static __global__ void __launch_bounds__(RIDGEFILL_HOPPER_THREADS, 1) ridgefill_hopper_kernel(
        const __grid_constant__ CUtensorMap map_codes, const __grid_constant__ CUtensorMap map_x,
        const __grid_constant__ ridgefill_problem p, const __grid_constant__ ridgefill_quantized x,
        const __grid_constant__ ridgefill_hopper_work work) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace ridgefill_sm90;
    using stage = ridgefill_hopper_stage<BN>;
    constexpr int STAGES = stage::COUNT;
#if defined(RIDGEFILL_EVERY_LANE_ARRIVES)
    constexpr int ARRIVALS = 32;
#else
    // One lane speaks for its warp. compute-sanitizer's racecheck cannot see that __syncwarp orders the others' reads before
    // it where the compiler needs no instruction for that, and reports them; with every lane arriving it is content. That
    // costs up to 5 %.
    constexpr int ARRIVALS = 1;
#endif

    extern __shared__ __align__(1024) char ridgefill_hopper_memory[]; // the swizzle counts from multiples of 1024
    const uint32_t codes_ring = shared_base(ridgefill_hopper_memory);
    const uint32_t x_ring     = codes_ring + STAGES*stage::CODES;
    const uint32_t scale_ring = x_ring + STAGES*stage::X;
    const uint32_t full       = scale_ring + STAGES*stage::SCALE; // barriers, 8 bytes each
    const uint32_t empty      = full + STAGES*8;

    const int warp = __shfl_sync(0xffffffff, threadIdx.x/32, 0); // the same in all lanes, and the compiler knows
    const int lane = threadIdx.x%32;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8*i, 1);
            barrier_init(empty + 8*i, 8*ARRIVALS); // from the consumer warps
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            wait_for_previous(); // x and its scales come from the kernel before
            int slot = 0, phase = 0;
            for (int i = 0;; i++) {
                const ridgefill_hopper_unit t = ridgefill_hopper_get_unit(work, p.n_groups, i);
                if (t.begin == t.end) {
                    break;
                }
                const int out0 = t.tile%work.n_o*RIDGEFILL_HOPPER_OUTS, row0 = t.tile/work.n_o*BN;
                for (int g = t.begin; g < t.end || slot > 0; g++) { // a unit takes whole rounds of the ring
                    const uint32_t barrier = full + 8*slot;
                    barrier_wait(empty + 8*slot, phase ^ 1);
                    if (g < t.end) {
                        barrier_expect_bytes(barrier, stage::BYTES);
                        copy_tile(codes_ring + slot*stage::CODES, &map_codes, barrier, g*RIDGEFILL_GROUP, out0);
                        copy_tile(x_ring + slot*stage::X, &map_x, barrier, g*RIDGEFILL_GROUP, row0);
                        copy_bytes(scale_ring + slot*stage::SCALE, x.scale + int64_t(g)*x.scale_stride + row0, stage::SCALE, barrier);
                    } else {
                        barrier_arrive(barrier);
                    }
                    slot = slot + 1 == STAGES ? 0 : slot + 1;
                    phase ^= slot == 0;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = warp/4 - 1; // of warps
        if (TURNS && group == 1) {
            named_arrive(1, 256);
        }

        const uint32_t codes_0 = describe(codes_ring + group*64*RIDGEFILL_GROUP);
        const uint32_t x_0     = describe(x_ring);
        // through a shuffle: the compiler would compute it from the thread's number in every step
        const uint32_t scale_0 = __shfl_sync(0xffffffff, scale_ring + lane%4*16, lane);
        uint32_t phase = 0;

        for (int i = 0;; i++) {
            const ridgefill_hopper_unit t = ridgefill_hopper_get_unit(work, p.n_groups, i);
            if (t.begin == t.end) {
                break;
            }
            const int out_a = t.tile%work.n_o*RIDGEFILL_HOPPER_OUTS + group*64 + warp%4*16 + lane/4;
            const int out_b = out_a + 8;
            const uint16_t * scale_a = p.scale + int64_t(min(out_a, p.n_out - 1))*p.n_groups + t.begin;
            const uint16_t * scale_b = p.scale + int64_t(min(out_b, p.n_out - 1))*p.n_groups + t.begin;

            float sum[BN/2];
            {
                const float bias_a = p.bias && t.begin == 0 && out_a < p.n_out ? p.bias[out_a] : 0.0f;
                const float bias_b = p.bias && t.begin == 0 && out_b < p.n_out ? p.bias[out_b] : 0.0f;
#pragma unroll
                for (int i = 0; i < BN/2; i++) {
                    sum[i] = i & 2 ? bias_b : bias_a;
                }
            }

            const auto release = [&](int slot) {
                __syncwarp();
                if (lane < ARRIVALS) {
                    barrier_arrive(empty + 8*slot);
                }
            };
            // the next group but `ahead`, which is in `slot`
            const auto add_group = [&](int slot, int ahead) {
                int dot[BN/2];
                barrier_wait(full + 8*slot, phase);
                if (TURNS) {
                    named_sync(1 + group, 256);
                }
                const uint32_t codes = codes_0 + slot*(stage::CODES/16), rows = x_0 + slot*(stage::X/16);
                multiply_fence();
                product<BN>::set(dot, descriptor(codes), descriptor(rows));
#pragma unroll
                for (int k = 1; k < RIDGEFILL_GROUP/32; k++) {
                    if (TURNS && k == 3) {
                        multiply_commit();
                    }
                    product<BN>::add(dot, descriptor(codes + 2*k), descriptor(rows + 2*k));
                }
                multiply_commit();

                // while the tensor cores work
                const float a = ridgefill_bf16(scale_a[ahead]), b = ridgefill_bf16(scale_b[ahead]);
                const uint32_t scale_at = scale_0 + slot*stage::SCALE;
                float4 scale_x[BN/16]; // of 16 rows each
#pragma unroll
                for (int j = 0; j < BN/16; j++) {
                    scale_x[j] = load_shared(scale_at + 64*j);
                }
                if (TURNS) {
                    multiply_wait<1>();
                    named_arrive(2 - group, 256);
                }
                multiply_wait<0>();
                pin(dot);

#pragma unroll
                for (int j = 0; j < BN/16; j++) {
                    const float4 s = scale_x[j];
                    const int  * d = dot + 8*j;
                    float      * f = sum + 8*j;
                    f[0] = ridgefill_add_group(a, s.x, float(d[0]), f[0]);
                    f[1] = ridgefill_add_group(a, s.y, float(d[1]), f[1]);
                    f[2] = ridgefill_add_group(b, s.x, float(d[2]), f[2]);
                    f[3] = ridgefill_add_group(b, s.y, float(d[3]), f[3]);
                    f[4] = ridgefill_add_group(a, s.z, float(d[4]), f[4]);
                    f[5] = ridgefill_add_group(a, s.w, float(d[5]), f[5]);
                    f[6] = ridgefill_add_group(b, s.z, float(d[6]), f[6]);
                    f[7] = ridgefill_add_group(b, s.w, float(d[7]), f[7]);
                }
                release(slot);
            };

            int left = t.end - t.begin;
#pragma unroll 1
            for (; left >= STAGES; left -= STAGES) {
#pragma unroll
                for (int slot = 0; slot < STAGES; slot++) {
                    add_group(slot, slot);
                }
                scale_a += STAGES;
                scale_b += STAGES;
                phase ^= 1;
            }
#pragma unroll 1
            for (int slot = 0; left > 0 || slot > 0; left--) { // the rest of a round, and what the producer left empty
                if (left > 0) {
                    add_group(slot, 0);
                    scale_a++;
                    scale_b++;
                } else {
                    barrier_wait(full + 8*slot, phase);
                    release(slot);
                }
                slot = slot + 1 == STAGES ? 0 : slot + 1;
                phase ^= slot == 0;
            }

            if (t.piece >= 0) {
                float * piece = work.sums + (int64_t(2*blockIdx.x + t.piece)*(BN/2))*256 + threadIdx.x - 128;
#pragma unroll
                for (int j = 0; j < BN/2; j++) {
                    piece[j*256] = sum[j];
                }
                continue;
            }
            const int row_a = t.tile/work.n_o*BN + lane%4*2;
            float * y = p.y + int64_t(row_a)*p.n_out + out_a;
#pragma unroll
            for (int j = 0; j < BN/4; j++) {
                const int row = j/2*8 + j%2;
                if (row_a + row < p.n_rows) {
                    if (out_a < p.n_out) {
                        y[row*p.n_out] = sum[j/2*4 + j%2];
                    }
                    if (out_b < p.n_out) {
                        y[row*p.n_out + 8] = sum[j/2*4 + j%2 + 2];
                    }
                }
            }
        }
        if (TURNS && group == 0) {
            named_sync(1, 256); // the last turn that the other group passed on
        }
    }
#endif
}

// Adds the pieces of the shared tiles. Grid: the blocks of the kernel above in x (the runs depend on their number), 16 rows
// of a tile in y. Block x takes the shared tiles x, x + grid, ...
template <int BN>
static __global__ void __launch_bounds__(256) ridgefill_hopper_add_kernel(
        const __grid_constant__ ridgefill_problem p, const __grid_constant__ ridgefill_hopper_work work) {
    const int lane = threadIdx.x%32, warp = threadIdx.x/32; // as in the kernel above: warps 0 to 3 are its first warpgroup
    const auto run_begin = [&](int block) { return ridgefill_hopper_run_begin(work, p.n_groups, block); };

    for (int tile = blockIdx.x; tile < work.n_shared; tile += gridDim.x) {
        const int begin = tile*p.n_groups, end = begin + p.n_groups;
        int first = begin/((work.n_shared*p.n_groups + int(gridDim.x) - 1)/int(gridDim.x)); // its block or one before
        while (run_begin(first + 1) <= begin) {
            first++;
        }
        int last = first;
        while (run_begin(last + 1) < end) {
            last++;
        }
        if (first == last) {
            continue; // made by one block
        }
        // only the first block can have come from the tile before; runs may be empty
        const int     part = BN/2*256;
        const float * from = work.sums + int64_t(2*first)*part + 8*blockIdx.y*256 + threadIdx.x;
        const float * head = run_begin(first) < begin ? from + part : from;
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = head[i*256];
        }
#pragma unroll 4
        for (int block = first + 1; block <= last; block++) {
            from += 2*part;
            const bool some = run_begin(block) < run_begin(block + 1);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i] += some ? from[i*256] : 0.0f;
            }
        }
        const int number = work.n_whole + tile;
        const int out0 = number%work.n_o*RIDGEFILL_HOPPER_OUTS + warp*16 + lane/4;
        const int row0 = number/work.n_o*BN + 16*blockIdx.y + lane%4*2;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int out = out0 + (i & 2)*4, row = row0 + (i & 1) + (i >> 2)*8;
            if (out < p.n_out && row < p.n_rows) {
                p.y[int64_t(row)*p.n_out + out] = sum[i];
            }
        }
    }
}
