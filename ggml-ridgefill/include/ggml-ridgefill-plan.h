#pragma once

// Fill graphs and exact graphs take turns, and each turn plans the compute buffers anew. Upstream then waits for the
// devices first, because a buffer may move. When nothing moves the wait only keeps the host from preparing the next
// ubatch while the device works: on an H200 that was a quarter of the time of a filled prompt (docs/kernels.md).

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-ridgefill-stream.h" // ggml-backend.cpp includes this header alone

#ifdef __cplusplus
extern "C" {
#endif

// A context with maps says that graphs will take turns. Until then ggml_ridgefill_plan_stays is false.
GGML_API void ggml_ridgefill_graphs_take_turns(void);

// True when the graph can be planned in the buffers that are there, and these backends may still work on the last graph
// meanwhile: CUDA and HIP devices, which run in order and whose inputs are copied after a wait of their own (one copy
// of the inputs), and the CPU.
GGML_API bool ggml_ridgefill_plan_stays(
    ggml_gallocr_t galloc, ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts, int n_backends, int n_copies,
    struct ggml_cgraph * graph, const int * node_backends, const int * leaf_backends
);

#ifdef __cplusplus
}
#endif
