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
layout (constant_id = 8) const uint WORDS = 16; // words of 4 codes that lie in shared memory at a time

// pitches are odd multiples of 16 bytes: 8 neighbouring lines of a matrix lie in different banks
#ifdef INT8
#define ELEMENT int8_t
#define TILE_TYPE uvec2
#define ACC_TYPE int
const uint UNIT = 8; // codes of a TILE_TYPE
const uint PITCH = WORDS / 2 + 2;
#else
#define ELEMENT float16_t
#define TILE_TYPE f16vec4
#define ACC_TYPE float
const uint UNIT = 4;
const uint PITCH = WORDS + 2;
#endif

const uint SUBGROUPS = BM / WM * (BN / WN);
const uint MS = WM / TM; // matrices of a subgroup
const uint NS = WN / TN;

// an invocation's pieces of 16 codes lie this many outputs or rows apart
const uint PIECES = WORDS / 4;
const uint STRIDE = BLOCK_SIZE / PIECES;
const uint LOADS_CODES = (BM + STRIDE - 1) / STRIDE;
const uint LOADS_X = (BN + STRIDE - 1) / STRIDE;
const uint LOADS_SCALE = (BM + BLOCK_SIZE - 1) / BLOCK_SIZE;
const uint LOADS_X_SCALE = (BN + BLOCK_SIZE - 1) / BLOCK_SIZE;

shared TILE_TYPE tile_codes[BM * PITCH];
shared TILE_TYPE tile_x[BN * PITCH];
shared float tile_scale[BM];
shared float tile_x_scale[BN];
shared float tile_bias[BM];
shared float stage[SUBGROUPS * TM * TN];

// What is multiplied next, on its way from memory while the matrices multiply.
uvec4 next_codes[LOADS_CODES];
uvec4 next_x[LOADS_X];
float next_scale[LOADS_SCALE];
float next_x_scale[LOADS_X_SCALE];

void fetch_codes(const uint output_begin, const uint row_begin, const uint piece_begin) {
    const uint piece = piece_begin + gl_LocalInvocationID.x % PIECES;
    const uint first = gl_LocalInvocationID.x / PIECES;
    [[unroll]] for (uint i = 0; i < LOADS_CODES; i++) {
        next_codes[i] = load_codes(output_begin + first + i * STRIDE, piece);
    }
    [[unroll]] for (uint i = 0; i < LOADS_X; i++) {
        next_x[i] = load_x(row_begin + first + i * STRIDE, piece);
    }
}

void fetch_scales(const uint output_begin, const uint row_begin, const uint group) {
    [[unroll]] for (uint i = 0; i < LOADS_SCALE; i++) {
        next_scale[i] = load_scale(output_begin + gl_LocalInvocationID.x + i * BLOCK_SIZE, group);
    }
    [[unroll]] for (uint i = 0; i < LOADS_X_SCALE; i++) {
        next_x_scale[i] = load_x_scale(row_begin + gl_LocalInvocationID.x + i * BLOCK_SIZE, group);
    }
}

#ifdef INT8
#define STORE(tile, at, codes)                                                                     \
    tile[at] = codes.xy;                                                                           \
    tile[at + 1] = codes.zw
#else
f16vec4 unpack(const uint word) {
    return f16vec4(ivec4(uvec4(word << 24, word << 16, word << 8, word)) >> 24);
}
#define STORE(tile, at, codes)                                                                     \
    [[unroll]] for (uint k = 0; k < 4; k++) {                                                      \
        tile[at + k] = unpack(codes[k]);                                                           \
    }
#endif

void store_codes() {
    const uint first = gl_LocalInvocationID.x / PIECES;
    const uint column = gl_LocalInvocationID.x % PIECES * (16 / UNIT);
    [[unroll]] for (uint i = 0; i < LOADS_CODES; i++) {
        const uint line = first + i * STRIDE;
        if (line < BM) {
            STORE(tile_codes, line * PITCH + column, next_codes[i]);
        }
    }
    [[unroll]] for (uint i = 0; i < LOADS_X; i++) {
        const uint line = first + i * STRIDE;
        if (line < BN) {
            STORE(tile_x, line * PITCH + column, next_x[i]);
        }
    }
}

void store_scales() {
    [[unroll]] for (uint i = 0; i < LOADS_SCALE; i++) {
        if (gl_LocalInvocationID.x + i * BLOCK_SIZE < BM) {
            tile_scale[gl_LocalInvocationID.x + i * BLOCK_SIZE] = next_scale[i];
        }
    }
    [[unroll]] for (uint i = 0; i < LOADS_X_SCALE; i++) {
        if (gl_LocalInvocationID.x + i * BLOCK_SIZE < BN) {
            tile_x_scale[gl_LocalInvocationID.x + i * BLOCK_SIZE] = next_x_scale[i];
        }
    }
}

void main() {
    const uint output_begin = gl_WorkGroupID.x * BM;
    const uint row_begin = gl_WorkGroupID.y * BN;
    const uint m_begin = gl_SubgroupID % (BM / WM) * WM;
    const uint n_begin = gl_SubgroupID / (BM / WM) * WN;

    fetch_codes(output_begin, row_begin, 0);
    fetch_scales(output_begin, row_begin, 0);
    for (uint i = gl_LocalInvocationID.x; i < BM; i += BLOCK_SIZE) {
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
        coopmat<ACC_TYPE, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> acc[MS * NS];
        [[unroll]] for (uint i = 0; i < MS * NS; i++) {
            acc[i] = coopmat<ACC_TYPE, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(ACC_TYPE(0));
        }
        for (uint word = 0; word < GROUP / 4; word += WORDS) {
            store_codes();
            if (word == 0) {
                store_scales();
            }
            barrier();

            // past the last group nothing is needed, but a load of what is there anyway costs no branch
            const uint next = min(group * GROUP / 16 + word / 4 + PIECES, p.n_groups * GROUP / 16 - PIECES);
            fetch_codes(output_begin, row_begin, next);
            if (word + WORDS == GROUP / 4) {
                fetch_scales(output_begin, row_begin, min(group + 1, p.n_groups - 1));
            }

            [[unroll]] for (uint k = 0; k < WORDS * 4; k += TK) {
                coopmat<ELEMENT, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> a[MS];
                [[unroll]] for (uint i = 0; i < MS; i++) {
                    const uint at = (m_begin + i * TM) * PITCH + k / UNIT;
                    coopMatLoad(a[i], tile_codes, at, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint j = 0; j < NS; j++) {
                    coopmat<ELEMENT, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> b;
                    const uint at = (n_begin + j * TN) * PITCH + k / UNIT;
                    coopMatLoad(b, tile_x, at, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0; i < MS; i++) {
                        acc[i * NS + j] = coopMatMulAdd(a[i], b, acc[i * NS + j]);
                    }
                }
            }
            if (word + WORDS < GROUP / 4) {
                barrier();
            }
        }

        coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> x_scale[NS];
        [[unroll]] for (uint j = 0; j < NS; j++) {
            coopMatLoad(x_scale[j], tile_x_scale, n_begin + j * TN, 0, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint i = 0; i < MS; i++) {
            coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> scale;
            coopMatLoad(scale, tile_scale, m_begin + i * TM, 0, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint j = 0; j < NS; j++) {
                const coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> dots =
                    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(acc[i * NS + j]);
                [[unroll]] for (uint e = 0; e < scale.length(); e++) {
                    sums[i * NS + j][e] = fma(scale[e] * x_scale[j][e], dots[e], sums[i * NS + j][e]);
                }
            }
        }
        barrier();
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
