#pragma once

// RidgeFill in llama-bench, which parses its own options and has its own list of test instances.

#include "common-ridgefill.h"

#include <string>
#include <vector>

struct common_ridgefill_bench {
    std::string path;
    std::vector<llama_ridgefill_mode> modes; // one test per mode; empty: speed with a side file, else off
    llama_ridgefill_params params = llama_ridgefill_default_params();
    llama_ridgefill_placement placement = LLAMA_RIDGEFILL_PLACEMENT_DEVICE;
};

// Parameters of one test.
struct common_ridgefill_bench_instance {
    llama_ridgefill_params params = {LLAMA_RIDGEFILL_MODE_OFF, 1, 0, 0};

    const char * mode() const { return llama_ridgefill_mode_name(params.mode); }
};

void common_ridgefill_bench_usage();

// True when argv[i] is one of our options; i is moved past its value. Throws std::invalid_argument on a bad value.
bool common_ridgefill_bench_arg(common_ridgefill_bench & bench, int argc, char ** argv, int & i);

std::vector<common_ridgefill_bench_instance> common_ridgefill_bench_instances(const common_ridgefill_bench & bench);

// Every test once per mode; neighbours differ in the mode only.
template <class T>
std::vector<T> common_ridgefill_bench_expand(const common_ridgefill_bench & bench, const std::vector<T> & tests) {
    std::vector<T> res;
    for (const T & test : tests) {
        for (const auto & instance : common_ridgefill_bench_instances(bench)) {
            res.push_back(test);
            res.back().ridgefill = instance;
        }
    }
    return res;
}

// Attaches the projector, loading it first if this model has none yet. A refused side file ends the program with
// status 1: a benchmark of something else would be worse than none.
void common_ridgefill_bench_attach(
    const common_ridgefill_bench & bench, const common_ridgefill_bench_instance & instance, llama_context * ctx,
    common_ridgefill_ptr & projector
);

// Announces n_prompt rows after those in memory. Rows that only set up a depth stay exact, so that every mode is
// measured at the same depth.
void common_ridgefill_bench_prompt(llama_context * ctx, int n_prompt, bool is_depth);
