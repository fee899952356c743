#include "llama-ridgefill-remote.h"

#include "llama-ridgefill-context.h"

#include "llama-impl.h"
#include "llama-memory.h"

#include <algorithm>
#include <cstdio>
#include <map>

using lost_fn = bool (*)(ggml_backend_t);

// nullptr: such a device cannot vanish
static lost_fn asks(ggml_backend_t backend) {
    ggml_backend_dev_t dev = ggml_backend_get_device(backend);
    ggml_backend_reg_t reg = dev ? ggml_backend_dev_backend_reg(dev) : nullptr;
    return reg ? (lost_fn) ggml_backend_reg_get_proc_address(reg, "ggml_ridgefill_rpc_lost") : nullptr;
}

ggml_backend_dev_t ridgefill_lost_device(ggml_backend_sched_t sched) {
    for (int i = 0; sched && i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        const lost_fn lost = asks(backend);
        if (lost && lost(backend)) {
            return ggml_backend_get_device(backend);
        }
    }
    return nullptr;
}

bool ridgefill_device_lost(ggml_backend_sched_t sched, bool wait) {
    for (int i = 0; wait && sched && i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        if (asks(backend)) {
            ggml_backend_synchronize(backend);
        }
    }
    ggml_backend_dev_t dev = ridgefill_lost_device(sched);
    if (dev) {
        LLAMA_LOG_ERROR(
            "%s: %s (%s) is gone, with the weights and caches it held\n"
            "%s: hint: start that rpc-server again, then this program; until then every request fails\n",
            __func__, ggml_backend_dev_name(dev), ggml_backend_dev_description(dev), __func__
        );
    }
    return dev != nullptr;
}

int ridgefill_take_back(llama_memory_i & memory, llama_ridgefill_context * ridgefill, const llama_batch & batch) {
    std::map<llama_seq_id, llama_pos> first; // of each sequence
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        for (int32_t k = 0; k < batch.n_seq_id[i]; ++k) {
            const auto it = first.emplace(batch.seq_id[i][k], batch.pos[i]).first;
            it->second = std::min(it->second, batch.pos[i]);
        }
    }
    for (const auto & [seq, pos] : first) {
        if (!memory.seq_rm(seq, pos, -1)) { // a recurrent state cannot go back
            memory.seq_rm(seq, -1, -1);
        }
        if (ridgefill) {
            ridgefill->cut(seq, memory.seq_pos_max(seq) + 1);
        }
    }
    return -3;
}

size_t ridgefill_saved(ggml_backend_sched_t sched, const char * path, size_t n_bytes) {
    if (!ridgefill_device_lost(sched)) {
        return n_bytes;
    }
    remove(path); // what could not be read is zeros in it
    return 0;
}
