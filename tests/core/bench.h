#pragma once

// What the programs of this folder share: the model they run on, and what counts as equal.

#include "core/harness.h"
#include "core/tiny.h"

#include <cstdio>

namespace core {

// Expected difference: 0. The limit is for backends that compute a ubatch's rows in another order.
constexpr double LIMIT = 1e-5; // of the largest logit

struct bench {
    llama_model_ptr owner;
    llama_model * model = nullptr;
    int n_layer = 0;
    bool tiny = false;
};

inline bool quiet = false; // errors in the log are part of the test
inline double worst = 0.0; // of all comparisons that must be equal

inline bool equal(const std::vector<float> & want, const std::vector<float> & found, const char * what) {
    const double d = difference(want, found);
    worst = std::max(worst, d);
    return CHECK(d <= LIMIT, "%s: relative difference %g", what, d);
}

inline bool differs(const std::vector<float> & want, const std::vector<float> & found, const char * what) {
    const double d = difference(want, found);
    return CHECK(d > 100 * LIMIT, "%s: relative difference %g, the check has no power", what, d);
}

// The model of the command line, or a random llama of 6 layers.
inline bool open_model(bench & b, int argc, char ** argv) {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR && !quiet) {
                fputs(text, stderr);
            }
        },
        nullptr
    );
    llama_backend_init();
    b.tiny = argc <= 1;
    b.owner =
        b.tiny ? make_tiny_llama() : llama_model_ptr(llama_model_load_from_file(argv[1], llama_model_default_params()));
    b.model = b.owner.get();
    check::begin("model");
    if (!CHECK(b.model != nullptr)) {
        return false;
    }
    b.n_layer = llama_model_n_layer(b.model);
    return true;
}

inline int finish(bench & b) {
    printf("largest difference of equal runs: %g\n", worst);
    b.owner.reset();
    llama_backend_free();
    return check::finish();
}

} // namespace core
