#version 450

#extension GL_EXT_control_flow_attributes : enable
#extension GL_EXT_shader_16bit_storage : require
#ifdef FLOAT16
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#ifdef INTEGER_DOT
#extension GL_EXT_integer_dot_product : require
#endif

// The product on units of every device: a workgroup multiplies BM outputs by BN rows, an invocation TM by TN of them.
// A group's dot product is an exact integer whatever the operands are held as (at most 128 * 128 * 127 < 2^24), so all
// variants give the same bits:
//   INTEGER_DOT    4 codes a word, the device's dot product
//   INTEGER        the same, the dot product spelled out: for tests on devices without it
//   FLOAT16        operands in fp16, sums in fp32
//   none of them   fp32

#include "ridgefill_mul.glsl"

layout (local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout (constant_id = 0) const uint BLOCK_SIZE = 256;
layout (constant_id = 1) const uint BM = 128;
layout (constant_id = 2) const uint BN = 64;
layout (constant_id = 3) const uint TM = 8;
layout (constant_id = 4) const uint TN = 4;

#if defined(INTEGER_DOT) || defined(INTEGER)
#define TILE_TYPE uint
#define ACC_TYPE int
const uint WORDS = 16; // words of 4 codes that lie in shared memory at a time
#elif defined(FLOAT16)
#define TILE_TYPE f16vec4
#define ACC_TYPE float
const uint WORDS = 8;
#else
#define TILE_TYPE vec4
#define ACC_TYPE float
const uint WORDS = 4;
#endif

// odd pitches: neighbouring invocations store words of one output or row, and read one word of neighbouring ones
shared TILE_TYPE tile_codes[WORDS * (BM + 1)];
shared TILE_TYPE tile_x[WORDS * (BN + 1)];
shared float tile_scale[2 * BM];
shared float tile_x_scale[2 * BN];

TILE_TYPE unpack(const uint word) {
#if defined(INTEGER_DOT) || defined(INTEGER)
    return word;
#else
    const ivec4 codes = ivec4(uvec4(word << 24, word << 16, word << 8, word)) >> 24;
    return TILE_TYPE(codes);
#endif
}

ACC_TYPE dot4(const TILE_TYPE a, const TILE_TYPE b, const ACC_TYPE acc) {
#if defined(INTEGER_DOT)
    return acc + dotPacked4x8EXT(int(a), int(b));
#elif defined(INTEGER)
    ACC_TYPE sum = acc;
    [[unroll]] for (int i = 0; i < 32; i += 8) {
        sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    }
    return sum;
#else
    ACC_TYPE sum = acc;
    [[unroll]] for (int i = 0; i < 4; i++) {
        sum = fma(ACC_TYPE(a[i]), ACC_TYPE(b[i]), sum);
    }
    return sum;
#endif
}

void main() {
    const uint id = gl_LocalInvocationID.x;
    const uint output_begin = gl_WorkGroupID.x * BM;
    const uint row_begin = gl_WorkGroupID.y * BN;

    // an invocation's outputs lie lanes_m apart, so that neighbours read and write neighbours
    const uint lanes_m = BM / TM;
    const uint lanes_n = BN / TN;
    const uint m = id % lanes_m;
    const uint n = id / lanes_m;

    float sums[TM * TN];
    [[unroll]] for (uint i = 0; i < TM; i++) {
        const float bias = load_bias(output_begin + m + i * lanes_m);
        [[unroll]] for (uint j = 0; j < TN; j++) {
            sums[i * TN + j] = bias;
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

        ACC_TYPE acc[TM * TN];
        [[unroll]] for (uint i = 0; i < TM * TN; i++) {
            acc[i] = ACC_TYPE(0);
        }
        for (uint word = 0; word < GROUP / 4; word += WORDS) {
            const uint piece_begin = (group * GROUP + word * 4) / 16;
            const uint pieces = WORDS / 4;
            for (uint i = id; i < BM * pieces; i += BLOCK_SIZE) {
                const uvec4 codes = load_codes(output_begin + i / pieces, piece_begin + i % pieces);
                [[unroll]] for (uint k = 0; k < 4; k++) {
                    tile_codes[(i % pieces * 4 + k) * (BM + 1) + i / pieces] = unpack(codes[k]);
                }
            }
            for (uint i = id; i < BN * pieces; i += BLOCK_SIZE) {
                const uvec4 codes = load_x(row_begin + i / pieces, piece_begin + i % pieces);
                [[unroll]] for (uint k = 0; k < 4; k++) {
                    tile_x[(i % pieces * 4 + k) * (BN + 1) + i / pieces] = unpack(codes[k]);
                }
            }
            barrier();

            [[unroll]] for (uint k = 0; k < WORDS; k++) {
                TILE_TYPE a[TM];
                [[unroll]] for (uint i = 0; i < TM; i++) {
                    a[i] = tile_codes[k * (BM + 1) + m + i * lanes_m];
                }
                [[unroll]] for (uint j = 0; j < TN; j++) {
                    const TILE_TYPE b = tile_x[k * (BN + 1) + n + j * lanes_n];
                    [[unroll]] for (uint i = 0; i < TM; i++) {
                        acc[i * TN + j] = dot4(a[i], b, acc[i * TN + j]);
                    }
                }
            }
            barrier();
        }

        [[unroll]] for (uint j = 0; j < TN; j++) {
            const float x_scale = tile_x_scale[turn * BN + n + j * lanes_n];
            [[unroll]] for (uint i = 0; i < TM; i++) {
                const float scale = tile_scale[turn * BM + m + i * lanes_m] * x_scale;
                sums[i * TN + j] = fma(scale, float(acc[i * TN + j]), sums[i * TN + j]);
            }
        }
    }

    [[unroll]] for (uint j = 0; j < TN; j++) {
        const uint row = row_begin + n + j * lanes_n;
        [[unroll]] for (uint i = 0; i < TM; i++) {
            const uint output_index = output_begin + m + i * lanes_m;
            if (row < p.n_rows && output_index < p.n_out) {
                data_y[p.y_offset + row * p.n_out + output_index] = sums[i * TN + j];
            }
        }
    }
}
