#pragma once

// What the driver (ridgefill.cpp) and the paths (one per instruction set) share: block shapes, packed layouts and the
// table of a path's kernels.
//
// Lanes of a vector are rows of x. Packed x holds 4 inputs of 16 rows side by side, which suits vpdpbusd, sdot and an
// AMX tile alike; a code is broadcast over the rows.

#include <cstddef>
#include <cstdint>

constexpr int RIDGEFILL_PANEL = 16;   // rows of x in one packed panel
constexpr int RIDGEFILL_GROUP = 128;  // inputs per scale
constexpr int RIDGEFILL_BLOCK_O = 64; // outputs and rows of one accumulator block: 16 KiB of f32, stays in L1
constexpr int RIDGEFILL_BLOCK_R = 64;
constexpr int RIDGEFILL_BLOCK_PANELS = RIDGEFILL_BLOCK_R / RIDGEFILL_PANEL;

// One group of one panel. Inputs beyond a short group and rows beyond the last hold zeros.
struct alignas(64) ridgefill_x_group {
    int8_t q[RIDGEFILL_GROUP / 4][RIDGEFILL_PANEL][4];
    float scale[RIDGEFILL_PANEL];
    int32_t sum[RIDGEFILL_PANEL]; // of q over the group
};

// Accumulators of a block lie in tiles of 32 outputs by 2 panels, in each [panel][output][row]. An AMX step reads its
// integers in the same order, so that loads and stores 4 KiB apart do not wait for each other.
inline size_t ridgefill_acc_index(int o, int panel) {
    return ((o / 32 * 2 + panel / 2) * 2 + panel % 2) * 32 * RIDGEFILL_PANEL + o % 32 * RIDGEFILL_PANEL;
}

// One accumulator block and what meets in it.
struct ridgefill_block {
    const char * codes;  // packed, [group][output][128]; or the tensor itself, see `direct`
    size_t codes_stride; // bytes from group to group
    size_t codes_row;    // bytes from output to output
    const float * scale; // [group][output]
    size_t scale_stride; // floats from group to group
    int n_out;           // multiple of 16, at most 64

    const ridgefill_x_group * x; // [panel][group]
    size_t x_stride;             // groups from panel to panel
    int n_panels;                // at most 4

    int n_groups;
    int n_last; // inputs of the last group; the others have 128

    float * acc; // 64 outputs by 64 rows, see ridgefill_acc_index
};

// Few rows and some outputs of theirs; codes and scales are read where they are, since they are used only once or so.
struct ridgefill_few {
    const int8_t * codes;   // [output][n_in]
    const uint16_t * scale; // bf16 [output][group]
    const float * bias;     // or NULL
    int64_t n_in;           // multiple of 32
    int64_t n_groups;
    int n_out;

    const int8_t * q;      // [row][group][128], zeros beyond a short group
    const float * q_scale; // [row][group]
    const int32_t * q_sum; // [row][group], of q
    int n_rows;

    float * y;       // [row][output]
    size_t y_stride; // floats from row to row
};

struct ridgefill_kernels {
    const char * name;
    int code_size; // bytes of a packed code
    bool direct;   // multiply can read the codes where they are: whole tiles of 16 outputs by 64 inputs

    // Around a thread's share of the multiplies: sets up the tile registers and puts back what was there. May be NULL.
    void (*enter)(void * saved); // 64 bytes
    void (*leave)(const void * saved);

    // Rounds `n` inputs (multiple of 32, at most 128) of `n_rows` rows (at most 16) that lie `stride` floats apart.
    void (*quantize)(const float * x, size_t stride, int n_rows, int n, ridgefill_x_group * out);

    // Packs `n` codes of each of `n_out` outputs, `stride` apart, as out[(n_out rounded up to 16)][128]; the rest is
    // zero.
    void (*pack)(const int8_t * codes, size_t stride, int n_out, int n, void * out);

    // acc(o, r) = bias[o], or 0 without bias; n_out at most 64
    void (*start)(const float * bias, int n_out, int n_panels, float * acc);

    // acc(o, r) += sum over the groups of scale[g][o] * x.scale[r] * dot(codes[g][o], x[g].q[r]), group after group
    void (*multiply)(const ridgefill_block & block);

    // y[r][o] = acc(o, r); rows of y lie `stride` floats apart
    void (*store)(const float * acc, int n_out, int n_rows, float * y, size_t stride);

    // All of it for few rows (ridgefill-few.h). May be NULL: they take the same way as many.
    void (*few)(const ridgefill_few & f);
};

// NULL when the processor (or the compiler) lacks the instruction set. Order of preference.
const ridgefill_kernels * ridgefill_kernels_amx();
const ridgefill_kernels * ridgefill_kernels_avx512vnni();
const ridgefill_kernels * ridgefill_kernels_avxvnni();
const ridgefill_kernels * ridgefill_kernels_avx2();
const ridgefill_kernels * ridgefill_kernels_neon();
