// Built for the sm_90a target on top of the others (sources.cmake); without it this file says that it has nothing.

#include "ridgefill-hopper.cuh"

#if !defined(RIDGEFILL_HOPPER)

bool ridgefill_hopper_built() { return false; }
ridgefill_hopper_plan ridgefill_hopper_choose(const ridgefill_problem &, int) { return {}; }
bool ridgefill_hopper(const ridgefill_problem &, const ridgefill_quantized &, const ridgefill_split &,
                      const ridgefill_hopper_plan &, int, cudaStream_t) { return false; }

#else

#include "ridgefill-hopper-launch.cuh"

bool ridgefill_hopper_built() { return true; }

// The cheapest of all tile heights and splits by a small model of time.
ridgefill_hopper_plan ridgefill_hopper_choose(const ridgefill_problem & p, int n_processors) {
    ridgefill_hopper_plan best = {};
    double best_time = 1e30;
    for (int rows : { 16, 32, 64, 96, 128, 160, 192 }) {
        const bool pair   = rows >= 96;
        const int  outs   = RIDGEFILL_HOPPER_OUTS*(pair ? 2 : 1);
        const int  n_m    = (p.n_out + outs - 1)/outs;
        const int  n_n    = (p.n_rows + rows - 1)/rows;
        const int  places = n_processors/(pair ? 2 : 1);
        for (int parts = 1; parts <= 16 && parts*4 <= p.n_groups + 3; parts++) {
            const int    waves  = (n_m*n_n*parts + places - 1)/places;
            const int    groups = (p.n_groups + parts - 1)/parts;
            // clocks: a group takes the tensor cores 4 per row, but never less than its codes take to arrive
            const double group  = rows*4.6 > 500.0 ? rows*4.6 : 500.0;
            const double write  = 3000.0 + rows*8.0 + (parts > 1 ? 3000.0 + rows*parts*16.0 : 0.0);
            const double time   = waves*(groups*group + write);
            if (time < best_time) {
                best_time = time;
                best = { rows, pair, parts };
            }
        }
    }
    return best;
}

bool ridgefill_hopper(const ridgefill_problem & p, const ridgefill_quantized & x, const ridgefill_split & split,
                      const ridgefill_hopper_plan & plan, int n_processors, cudaStream_t stream) {
    switch (plan.rows) {
        case  16: return ridgefill_hopper_launch< 16, false, 0>(p, x, split, n_processors, stream);
        case  32: return ridgefill_hopper_launch< 32, false, 0>(p, x, split, n_processors, stream);
        case  64: return ridgefill_hopper_launch< 64, false, 0>(p, x, split, n_processors, stream);
        case  96: return ridgefill_hopper_launch< 96, true, 1>(p, x, split, n_processors, stream);
        case 128: return ridgefill_hopper_launch<128, true, 1>(p, x, split, n_processors, stream);
        case 160: return ridgefill_hopper_launch<160, true, 1>(p, x, split, n_processors, stream);
        case 192: return ridgefill_hopper_launch<192, true, 1>(p, x, split, n_processors, stream);
    }
    return false;
}

#endif
