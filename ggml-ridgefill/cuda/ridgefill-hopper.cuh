#pragma once

// The Hopper path for hosts that cannot build it: its file needs the sm_90a target, which other files do not have.

#include "ridgefill-split.cuh"

struct ridgefill_hopper_plan {
    int  rows;  // of a tile: 16, 32, 64, 96, 128, 160 or 192
    bool pair;  // two blocks share x
    int  parts; // of the groups
};

// False when this build lacks the sm_90a code. The device must be of compute capability 9.0.
bool ridgefill_hopper_built();

ridgefill_hopper_plan ridgefill_hopper_choose(const ridgefill_problem & p, int n_processors);

// False when the driver refuses the tensor maps; nothing is launched then. codes and x.q start at multiples of 16 bytes.
bool ridgefill_hopper(const ridgefill_problem & p, const ridgefill_quantized & x, const ridgefill_split & split,
                      const ridgefill_hopper_plan & plan, int n_processors, cudaStream_t stream);
