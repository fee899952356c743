#pragma once

// Few rows, as when a prompt ends in a short batch: each code is used once or so, and packing would cost more than
// multiplying. Threads take outputs in turn and read the codes where they are; the bits are those of the packed way.

#include "ridgefill-kernel.h"

#include "ggml.h"

struct ggml_compute_params;

constexpr int RIDGEFILL_FEW_ROWS = 8; // docs/kernels.md

inline bool ridgefill_is_few(const ridgefill_kernels & k, int64_t n_rows) {
    return k.few && n_rows <= RIDGEFILL_FEW_ROWS;
}

size_t ridgefill_few_bytes(int64_t n_groups); // work memory of a thread, whatever the rows

// x: the packed panel; own: the thread's work memory. The chunk counter was set to the number of threads.
void ridgefill_few_forward(
    const ggml_compute_params & params, const ridgefill_kernels & k, ggml_tensor * dst, const ridgefill_x_group * x,
    char * own
);
