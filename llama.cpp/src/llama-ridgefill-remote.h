#pragma once

// Devices that can vanish: rpc-servers (ggml-ridgefill/rpc). What a context computed with one that is gone is
// worthless, and so are its weights and caches there: the context refuses all further work.

#include "ggml-backend.h"

#include <cstddef>

struct llama_batch;
struct llama_memory_i;
struct llama_ridgefill_context;

// The first device of the scheduler that is gone, or nullptr.
ggml_backend_dev_t ridgefill_lost_device(ggml_backend_sched_t sched);

// Is one gone? Says so in the log. wait: after all work that was given to the scheduler; waits only where devices can
// vanish, so with local ones nothing changes.
bool ridgefill_device_lost(ggml_backend_sched_t sched, bool wait = false);

// Undoes what a decode of these rows did to the memory, and returns the decode's status.
int ridgefill_take_back(llama_memory_i & memory, llama_ridgefill_context * ridgefill, const llama_batch & batch);

// What a save to a file returned; 0 and no file left when a device was gone by then.
size_t ridgefill_saved(ggml_backend_sched_t sched, const char * path, size_t n_bytes);
