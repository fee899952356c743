#include "ggml-ridgefill-plan.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

static std::atomic<bool> take_turns{false};

void ggml_ridgefill_graphs_take_turns(void) {
    take_turns = true;
}

// Work of one graph is done before the next one's begins, and no input is copied while the last graph runs.
static bool runs_in_order(ggml_backend_t backend) {
    ggml_backend_dev_t dev = ggml_backend_get_device(backend);
    if (dev == nullptr) {
        return false;
    }
    const char * name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
    return ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU || strcmp(name, "CUDA") == 0
           || strcmp(name, "ROCm") == 0;
}

bool ggml_ridgefill_plan_stays(
    ggml_gallocr_t galloc, ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts, int n_backends, int n_copies,
    ggml_cgraph * graph, const int * node_backends, const int * leaf_backends
) {
    if (!take_turns || n_copies > 1) { // several copies of the inputs: they are copied while devices work
        return false;
    }
    for (int i = 0; i < n_backends; i++) {
        if (!runs_in_order(backends[i])) {
            return false;
        }
    }
    // the sizes, from a planner that allocates nothing
    std::unique_ptr<ggml_gallocr, decltype(&ggml_gallocr_free)> probe(
        ggml_gallocr_new_n(bufts, n_backends), ggml_gallocr_free
    );
    std::vector<size_t> sizes(n_backends);
    ggml_gallocr_reserve_n_size(probe.get(), graph, node_backends, leaf_backends, sizes.data());
    for (int i = 0; i < n_backends; i++) {
        // a plan above the largest buffer of a type has several parts, whose sizes this does not show
        if (sizes[i] > ggml_backend_buft_get_max_size(bufts[i])) {
            return false;
        }
        bool counted = false; // one buffer for a type that occurs twice; the size is reported for the first
        for (int j = 0; j < i; j++) {
            counted = counted || bufts[j] == bufts[i];
        }
        if (!counted && sizes[i] > ggml_gallocr_get_buffer_size(galloc, i)) {
            return false;
        }
    }
    return true;
}
