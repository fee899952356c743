#pragma once

// Maps that stay in host memory and are copied to the device for each use, for cards whose memory is full.
//
// A stream is one device's share of them. It has a few slots in device memory; map i lies in slot i % n_slots while it
// is needed. Every map has its own tensors there, which graphs read like any weight. When a graph is computed, a map is
// in place before its op runs, and a slot is filled with its next map as soon as the op that read it is done: by a
// queue of its own, while the device goes on. Thread safe; graphs of several contexts may use one stream.

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_RIDGEFILL_SLOTS 4 // the copies of so many maps hide behind the layers before the first map

struct ggml_ridgefill_stream;

// host and device: tensors of each map, n_tensors at a time, of the same types and shapes. Those of the device are not
// allocated yet; the host's hold the data and stay as they are. NULL when the device has no room.
GGML_API struct ggml_ridgefill_stream * ggml_ridgefill_stream_new(
    ggml_backend_dev_t dev, int n_maps, int n_tensors, struct ggml_tensor ** host, struct ggml_tensor ** device
);
GGML_API void ggml_ridgefill_stream_free(struct ggml_ridgefill_stream * stream);

GGML_API size_t ggml_ridgefill_stream_size(const struct ggml_ridgefill_stream * stream); // bytes on the device

// False: the device waits for each copy (no queues that wait for each other, or none that was tried).
GGML_API bool ggml_ridgefill_stream_overlaps(const struct ggml_ridgefill_stream * stream);

// What ggml_backend_graph_compute_async does: without streams exactly backend->iface.graph_compute.
GGML_API enum ggml_status ggml_ridgefill_stream_compute(ggml_backend_t backend, struct ggml_cgraph * graph);

#ifdef __cplusplus
}
#endif
