// Built for the sm_90a target on top of the others (sources.cmake); without it this file says that it has nothing.

#include "ridgefill-hopper.cuh"

#if !defined(RIDGEFILL_HOPPER)

bool ridgefill_hopper_built() { return false; }
ridgefill_hopper_plan ridgefill_hopper_choose(const ridgefill_problem &, int, int, int) { return {}; }
bool ridgefill_hopper(const ridgefill_problem &, const ridgefill_quantized &, float *, const ridgefill_hopper_plan &, cudaStream_t) { return false; }

#else

#include "ridgefill-hopper-launch.cuh"

bool ridgefill_hopper_built() { return true; }

// Microseconds on an H200 (docs/kernels.md): what a block needs for one group, by the rows of its tile.
struct ridgefill_hopper_height { int rows; double group; };
static const ridgefill_hopper_height ridgefill_hopper_heights[] = {
    { 32, 0.30 }, { 64, 0.40 }, { 96, 0.46 }, { 128, 0.57 }, { 160, 0.70 },
};
constexpr double RIDGEFILL_HOPPER_START = 3.0; // of a kernel, fetching and writing the first and last tile

static ridgefill_hopper_plan ridgefill_hopper_plan_tiles(const ridgefill_problem & p, int n_processors, const ridgefill_hopper_height & h, bool share) {
    const int outs  = (p.n_out + RIDGEFILL_HOPPER_OUTS - 1)/RIDGEFILL_HOPPER_OUTS;
    const int tiles = outs*((p.n_rows + h.rows - 1)/h.rows);
    ridgefill_hopper_plan plan = {};
    plan.rows     = h.rows;
    plan.n_whole  = share ? tiles/n_processors*n_processors : tiles;
    plan.n_shared = tiles - plan.n_whole;
    plan.blocks   = std::min(n_processors, tiles);
    if (plan.n_shared > 0) {
        // four groups at least in a run, and a run no longer than a tile
        plan.blocks = plan.n_whole > 0 ? n_processors : std::max(plan.n_shared, std::min(n_processors, plan.n_shared*p.n_groups/4));
        plan.sums   = size_t(plan.blocks)*2*(h.rows/2)*256;
    }
    const double turns  = plan.n_whole > 0 ? double((plan.n_whole + plan.blocks - 1)/plan.blocks) : 0.0;
    const double run    = (plan.n_shared*p.n_groups + plan.blocks - 1)/plan.blocks;
    const double write  = 0.01*h.rows; // a tile's results
    // never faster than the codes come from memory, 4 TB/s for all blocks
    const double group  = std::max(h.group, plan.blocks*RIDGEFILL_HOPPER_OUTS*RIDGEFILL_GROUP/4.0e6/((p.n_rows + h.rows - 1)/h.rows));
    plan.us = RIDGEFILL_HOPPER_START + turns*(p.n_groups*group + write);
    if (plan.n_shared > 0) {
        plan.us += run*group + 2.0*write + 2.5 + plan.n_shared*h.rows*0.0004*(1.0 + double(plan.blocks)/plan.n_shared);
    }
    return plan;
}

ridgefill_hopper_plan ridgefill_hopper_choose(const ridgefill_problem & p, int n_processors, int rows, int share) {
    ridgefill_hopper_plan best = {};
    for (const ridgefill_hopper_height & h : ridgefill_hopper_heights) {
        for (int s = 0; s < 2; s++) {
            const ridgefill_hopper_plan plan = ridgefill_hopper_plan_tiles(p, n_processors, h, s == 1);
            if ((rows == 0 || rows == h.rows) && (share < 0 || share == s) && (best.rows == 0 || plan.us < best.us)) {
                best = plan;
            }
        }
    }
    return best;
}

bool ridgefill_hopper(const ridgefill_problem & p, const ridgefill_quantized & x, float * sums,
                      const ridgefill_hopper_plan & plan, cudaStream_t stream) {
    switch (plan.rows) {
        case  32: return ridgefill_hopper_launch< 32, false>(p, x, sums, plan, stream);
        case  64: return ridgefill_hopper_launch< 64, false>(p, x, sums, plan, stream);
        case  96: return ridgefill_hopper_launch< 96, false>(p, x, sums, plan, stream);
        case 128: return ridgefill_hopper_launch<128, true >(p, x, sums, plan, stream);
        case 160: return ridgefill_hopper_launch<160, true >(p, x, sums, plan, stream);
    }
    return false;
}

#endif
