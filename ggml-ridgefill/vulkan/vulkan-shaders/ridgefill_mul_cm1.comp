#version 450

#extension GL_EXT_control_flow_attributes : enable
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#ifdef INT8
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif

// The product on cooperative matrices: a workgroup multiplies BM outputs by BN rows, a subgroup WM by WN of them, in
// matrices of TM x TN x TK. Operands are int8 with int32 sums (INT8) or fp16 with fp32 sums, which hold a group's
// integers as exactly.

#include "ridgefill_mul.glsl"

layout (local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout (constant_id = 0) const uint BLOCK_SIZE = 128;
layout (constant_id = 1) const uint BM = 128;
layout (constant_id = 2) const uint BN = 64;
layout (constant_id = 3) const uint WM = 64;
layout (constant_id = 4) const uint WN = 32;
layout (constant_id = 5) const uint TM = 16;
layout (constant_id = 6) const uint TN = 16;
layout (constant_id = 7) const uint TK = 16;

#ifdef INT8
#define ELEMENT int8_t
#define TILE_TYPE uint // of 4 codes
#define ACC_TYPE int
const uint WORDS = 16; // words of 4 codes that lie in shared memory at a time
const uint PITCH = WORDS + 4;
#else
#define ELEMENT float16_t
#define TILE_TYPE f16vec4
#define ACC_TYPE float
const uint WORDS = 8;
const uint PITCH = WORDS + 2;
#endif

const uint SUBGROUPS = BM / WM * (BN / WN);
const uint MS = WM / TM; // matrices of a subgroup
const uint NS = WN / TN;

shared TILE_TYPE tile_codes[BM * PITCH];
shared TILE_TYPE tile_x[BN * PITCH];
shared float tile_scale[2 * BM];
shared float tile_x_scale[2 * BN];
shared float tile_bias[BM];
shared float stage[SUBGROUPS * TM * TN];

TILE_TYPE unpack(const uint word) {
#ifdef INT8
    return word;
#else
    const ivec4 codes = ivec4(uvec4(word << 24, word << 16, word << 8, word)) >> 24;
    return TILE_TYPE(codes);
#endif
}

void main() {
    const uint id = gl_LocalInvocationID.x;
    const uint output_begin = gl_WorkGroupID.x * BM;
    const uint row_begin = gl_WorkGroupID.y * BN;
    const uint m_begin = gl_SubgroupID % (BM / WM) * WM;
    const uint n_begin = gl_SubgroupID / (BM / WM) * WN;

    for (uint i = id; i < BM; i += BLOCK_SIZE) {
        tile_bias[i] = load_bias(output_begin + i);
    }
    barrier();

    // A stride of 0 repeats a vector along a matrix: bias and scales of outputs down the columns, scales of rows along
    // the rows. Matrices of one type place their elements alike, so the rest is by element.
    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> sums[MS * NS];
    [[unroll]] for (uint i = 0; i < MS; i++) {
        [[unroll]] for (uint j = 0; j < NS; j++) {
            coopMatLoad(sums[i * NS + j], tile_bias, m_begin + i * TM, 0, gl_CooperativeMatrixLayoutColumnMajor);
        }
    }

    for (uint group = 0; group < p.n_groups; group++) {
        // by turns in two places: the last group's scales are still being read
        const uint turn = group % 2;
        for (uint i = id; i < BM; i += BLOCK_SIZE) {
            tile_scale[turn * BM + i] = load_scale(output_begin + i, group);
        }
        for (uint i = id; i < BN; i += BLOCK_SIZE) {
            tile_x_scale[turn * BN + i] = load_x_scale(row_begin + i, group);
        }

        coopmat<ACC_TYPE, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> acc[MS * NS];
        [[unroll]] for (uint i = 0; i < MS * NS; i++) {
            acc[i] = coopmat<ACC_TYPE, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(ACC_TYPE(0));
        }
        for (uint word = 0; word < GROUP / 4; word += WORDS) {
            const uint piece_begin = (group * GROUP + word * 4) / 16;
            const uint pieces = WORDS / 4;
            for (uint i = id; i < BM * pieces; i += BLOCK_SIZE) {
                const uvec4 codes = load_codes(output_begin + i / pieces, piece_begin + i % pieces);
                [[unroll]] for (uint k = 0; k < 4; k++) {
                    tile_codes[i / pieces * PITCH + i % pieces * 4 + k] = unpack(codes[k]);
                }
            }
            for (uint i = id; i < BN * pieces; i += BLOCK_SIZE) {
                const uvec4 codes = load_x(row_begin + i / pieces, piece_begin + i % pieces);
                [[unroll]] for (uint k = 0; k < 4; k++) {
                    tile_x[i / pieces * PITCH + i % pieces * 4 + k] = unpack(codes[k]);
                }
            }
            barrier();

            [[unroll]] for (uint k = 0; k < WORDS * 4; k += TK) {
                coopmat<ELEMENT, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> a[MS];
                [[unroll]] for (uint i = 0; i < MS; i++) {
                    const uint at = (m_begin + i * TM) * PITCH + k / 4;
                    coopMatLoad(a[i], tile_codes, at, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint j = 0; j < NS; j++) {
                    coopmat<ELEMENT, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> b;
                    const uint at = (n_begin + j * TN) * PITCH + k / 4;
                    coopMatLoad(b, tile_x, at, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0; i < MS; i++) {
                        acc[i * NS + j] = coopMatMulAdd(a[i], b, acc[i * NS + j]);
                    }
                }
            }
            barrier();
        }

        [[unroll]] for (uint i = 0; i < MS; i++) {
            coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> scale;
            coopMatLoad(scale, tile_scale, turn * BM + m_begin + i * TM, 0, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint j = 0; j < NS; j++) {
                coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> x_scale;
                coopMatLoad(x_scale, tile_x_scale, turn * BN + n_begin + j * TN, 0, gl_CooperativeMatrixLayoutRowMajor);
                const coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> dots =
                    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(acc[i * NS + j]);
                [[unroll]] for (uint e = 0; e < scale.length(); e++) {
                    sums[i * NS + j][e] = fma(scale[e] * x_scale[e], dots[e], sums[i * NS + j][e]);
                }
            }
        }
    }

    // through shared memory, as y has neither the alignment nor the full tiles that a matrix store asks for
    const uint stage_begin = gl_SubgroupID * TM * TN;
    [[unroll]] for (uint i = 0; i < MS; i++) {
        [[unroll]] for (uint j = 0; j < NS; j++) {
            coopMatStore(sums[i * NS + j], stage, stage_begin, TM, gl_CooperativeMatrixLayoutColumnMajor);
            controlBarrier(
                gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
            for (uint e = gl_SubgroupInvocationID; e < TM * TN; e += gl_SubgroupSize) {
                const uint output_index = output_begin + m_begin + i * TM + e % TM;
                const uint row = row_begin + n_begin + j * TN + e / TM;
                if (row < p.n_rows && output_index < p.n_out) {
                    data_y[p.y_offset + row * p.n_out + output_index] = stage[stage_begin + e];
                }
            }
            controlBarrier(
                gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
        }
    }
}
