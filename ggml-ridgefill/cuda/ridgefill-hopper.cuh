#pragma once

// The Hopper path for hosts that cannot build it: its file needs the sm_90a target, which other files do not have.

#include "ridgefill-problem.cuh"

struct ridgefill_hopper_plan {
    int    rows;     // of a tile, which has 128 outputs: 32, 64, 96, 128 or 160
    int    blocks;
    int    n_whole;  // tiles that one block makes alone
    int    n_shared; // tiles that are dealt out to all blocks
    size_t sums;     // floats of work memory for the pieces of shared tiles
    double us;       // predicted
};

// False when this build lacks the sm_90a code. The device must be of compute capability 9.0.
bool ridgefill_hopper_built();

// rows and share: only such plans (for measurements); 0 and -1: the best
ridgefill_hopper_plan ridgefill_hopper_choose(const ridgefill_problem & p, int n_processors, int rows = 0, int share = -1);

// False when the driver refuses the tensor maps; nothing is launched then. codes and x.q start at multiples of 16 bytes.
bool ridgefill_hopper(const ridgefill_problem & p, const ridgefill_quantized & x, float * sums,
                      const ridgefill_hopper_plan & plan, cudaStream_t stream);
