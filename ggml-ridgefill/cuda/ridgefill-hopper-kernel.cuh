#pragma once

// The product on Hopper. A block makes 128 outputs x BN rows: one producer thread keeps a ring of stages filled (a stage is
// one group of 128 inputs of codes and x, and the scales of x), two warpgroups of 64 outputs each multiply.
//
// A warpgroup's integer sums of one group must be turned into f32 and scaled before its next group starts, nearly as much
// work for the f32 units as the product is for the tensor cores. With TURNS a warpgroup starts its product only when the
// other's is nearly done, so that one scales while the other multiplies.

#include "ridgefill-wgmma.cuh"
#include "ridgefill-split.cuh"

constexpr int RIDGEFILL_HOPPER_OUTS    = 128; // of a block
constexpr int RIDGEFILL_HOPPER_THREADS = 384; // producer warpgroup, two consumer warpgroups

template <int BN>
struct ridgefill_hopper_stage {
    static constexpr int CODES = RIDGEFILL_HOPPER_OUTS*RIDGEFILL_GROUP; // bytes
    static constexpr int X     = BN*RIDGEFILL_GROUP;
    static constexpr int SCALE = BN*int(sizeof(float));
    static constexpr int BYTES = CODES + X + SCALE;
    static constexpr int LIMIT = 227*1024 - 256; // of a block, less the barriers
    static constexpr int COUNT = LIMIT/BYTES < 10 ? LIMIT/BYTES : 10;
    static constexpr int SHARED = COUNT*BYTES + 256;
};

struct ridgefill_hopper_grid {
    int n_o, n_r; // tiles along the outputs and along the rows
    int parts;    // of the groups
};

template <int BN, int TURNS>
static __global__ void __launch_bounds__(RIDGEFILL_HOPPER_THREADS, 1) ridgefill_hopper_kernel(
        const __grid_constant__ CUtensorMap map_codes, const __grid_constant__ CUtensorMap map_x,
        const __grid_constant__ ridgefill_problem p, const __grid_constant__ ridgefill_quantized x,
        const __grid_constant__ ridgefill_split split, const __grid_constant__ ridgefill_hopper_grid grid) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace ridgefill_sm90;
    using stage = ridgefill_hopper_stage<BN>;
    constexpr int STAGES = stage::COUNT;

    extern __shared__ __align__(1024) char ridgefill_hopper_memory[]; // the swizzle counts from multiples of 1024
    const uint32_t codes_ring = shared_base(ridgefill_hopper_memory);
    const uint32_t x_ring     = codes_ring + STAGES*stage::CODES;
    const uint32_t scale_ring = x_ring + STAGES*stage::X;
    const uint32_t full       = scale_ring + STAGES*stage::SCALE; // barriers, 8 bytes each
    const uint32_t empty      = full + STAGES*8;

    const int warp    = __shfl_sync(0xffffffff, threadIdx.x/32, 0); // the same in all lanes, and the compiler knows
    const int lane    = threadIdx.x%32;
    const int n_units = grid.n_o*grid.n_r*grid.parts;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8*i, 1);
            barrier_init(empty + 8*i, 8); // one arrival of every consumer warp
        }
        barrier_init_fence();
    }
    __syncthreads();

    // a unit of work: a tile and a part of the groups
    struct unit { int out0, row0, part, begin, end; };
    const auto get_unit = [&](int u) {
        const int o = u%grid.n_o, r = u/grid.n_o%grid.n_r, part = u/grid.n_o/grid.n_r;
        return unit{ o*RIDGEFILL_HOPPER_OUTS, r*BN, part, p.n_groups*part/grid.parts, p.n_groups*(part + 1)/grid.parts };
    };

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            int slot = 0, phase = 0;
            for (int u = blockIdx.x; u < n_units; u += gridDim.x) {
                const unit t = get_unit(u);
                for (int g = t.begin; g < t.end; g++) {
                    const uint32_t barrier = full + 8*slot;
                    barrier_wait(empty + 8*slot, phase ^ 1);
                    barrier_expect_bytes(barrier, stage::BYTES);
                    copy_tile(codes_ring + slot*stage::CODES, &map_codes, barrier, g*RIDGEFILL_GROUP, t.out0);
                    copy_tile(x_ring + slot*stage::X, &map_x, barrier, g*RIDGEFILL_GROUP, t.row0);
                    copy_bytes(scale_ring + slot*stage::SCALE, x.scale + int64_t(g)*x.scale_stride + t.row0, stage::SCALE, barrier);
                    if (++slot == STAGES) {
                        slot = 0;
                        phase ^= 1;
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = warp/4 - 1; // of warps
        if (TURNS && group == 1) {
            named_arrive(1, 256);
        }

        // what changes from stage to stage: two descriptors and two addresses
        const uint32_t codes_0 = describe(codes_ring + group*64*RIDGEFILL_GROUP);
        const uint32_t x_0     = describe(x_ring);
        const uint32_t scale_0 = scale_ring + lane%4*16;
        uint32_t codes_at = codes_0, x_at = x_0, scale_at = scale_0, full_at = full, phase = 0;

        for (int u = blockIdx.x; u < n_units; u += gridDim.x) {
            const unit t = get_unit(u);
            const int out_a = t.out0 + group*64 + warp%4*16 + lane/4;
            const int out_b = out_a + 8;
            const uint16_t * scale_a = p.scale + int64_t(min(out_a, p.n_out - 1))*p.n_groups + t.begin;
            const uint16_t * scale_b = p.scale + int64_t(min(out_b, p.n_out - 1))*p.n_groups + t.begin;
            uint16_t next_a = *scale_a, next_b = *scale_b; // one group ahead

            float sum[BN/2];
            {
                const float bias_a = p.bias && t.part == 0 && out_a < p.n_out ? p.bias[out_a] : 0.0f;
                const float bias_b = p.bias && t.part == 0 && out_b < p.n_out ? p.bias[out_b] : 0.0f;
#pragma unroll
                for (int i = 0; i < BN/2; i++) {
                    sum[i] = i & 2 ? bias_b : bias_a;
                }
            }

#pragma unroll 1
            for (int left = t.end - t.begin; left > 0; left--) {
                int dot[BN/2];
                barrier_wait(full_at, phase);
                if (TURNS) {
                    named_sync(1 + group, 256);
                }
                multiply_fence();
                product<BN>::set(dot, descriptor(codes_at), descriptor(x_at));
#pragma unroll
                for (int k = 1; k < RIDGEFILL_GROUP/32; k++) {
                    if (TURNS == 1 && k == 3) {
                        multiply_commit();
                    }
                    product<BN>::add(dot, descriptor(codes_at + 2*k), descriptor(x_at + 2*k));
                }
                multiply_commit();
                if (TURNS == 2) {
                    named_arrive(2 - group, 256);
                }

                // while the tensor cores work
                constexpr int SPARE = (204 - BN)/4; // registers that are left, in fours
                constexpr int EARLY = BN/16 < SPARE ? BN/16 : SPARE;
                float4 scale_x[BN/16]; // of 16 rows each
#pragma unroll
                for (int j = 0; j < EARLY; j++) {
                    scale_x[j] = load_shared(scale_at + 64*j);
                }
                const float a = ridgefill_bf16(next_a), b = ridgefill_bf16(next_b);
                const int step = left > 1; // the last one is read again, for there may be nothing after it
                scale_a += step;
                scale_b += step;
                next_a = *scale_a;
                next_b = *scale_b;
                if (TURNS == 1) {
                    multiply_wait<1>();
                    named_arrive(2 - group, 256);
                }
                multiply_wait<0>();
                pin(dot);

#pragma unroll
                for (int j = 0; j < BN/16; j++) {
                    const float4 s = scale_x[j];
                    if (j + EARLY < BN/16) {
                        scale_x[j + EARLY] = load_shared(scale_at + 64*(j + EARLY));
                    }
                    const int * d = dot + 8*j;
                    float     * f = sum + 8*j;
                    f[0] = ridgefill_add_group(a, s.x, float(d[0]), f[0]);
                    f[1] = ridgefill_add_group(a, s.y, float(d[1]), f[1]);
                    f[2] = ridgefill_add_group(b, s.x, float(d[2]), f[2]);
                    f[3] = ridgefill_add_group(b, s.y, float(d[3]), f[3]);
                    f[4] = ridgefill_add_group(a, s.z, float(d[4]), f[4]);
                    f[5] = ridgefill_add_group(a, s.w, float(d[5]), f[5]);
                    f[6] = ridgefill_add_group(b, s.z, float(d[6]), f[6]);
                    f[7] = ridgefill_add_group(b, s.w, float(d[7]), f[7]);
                }

                __syncwarp();
                if (lane == 0) {
                    barrier_arrive(full_at + STAGES*8); // its `empty`
                }
                codes_at += stage::CODES/16;
                x_at     += stage::X/16;
                scale_at += stage::SCALE;
                full_at  += 8;
                if (full_at == empty) {
                    codes_at = codes_0;
                    x_at     = x_0;
                    scale_at = scale_0;
                    full_at  = full;
                    phase ^= 1;
                }
            }

            const int row_a = t.row0 + lane%4*2;
            float * y = ridgefill_split_target(p, split, t.part) + int64_t(row_a)*p.n_out + out_a;
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
