#pragma once

// An rpc-server that is gone: what upstream's client does instead of ending the program. A part of ggml-rpc.cpp, which
// includes it once, behind its messages and before its dispatcher.
//
// A dispatcher's worker thread notices, because a command fails. From then on it sends nothing: writes are dropped,
// answers are zeros (so an allocation gets no buffer), and nobody is kept waiting. Nothing is thrown either, since
// answers are awaited in destructors and below C code. Whoever uses results asks ggml_ridgefill_rpc_lost first.

#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>

struct ggml_ridgefill_rpc_lost_list {
    std::mutex mutex;
    std::set<const rpc_dispatcher *> dispatchers;

    static ggml_ridgefill_rpc_lost_list & get() {
        static auto * list = new ggml_ridgefill_rpc_lost_list; // never freed: worker threads may end after statics
        return *list;
    }
};

// One per worker thread.
struct ggml_ridgefill_rpc_worker {
    bool failed = false;
    const rpc_dispatcher * dispatcher = nullptr; // once it is on the list

    ggml_ridgefill_rpc_worker() {
#ifndef _WIN32
        sigset_t pipe; // writing to a closed connection shall fail, not end the program
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
#endif
    }

    // The thread ends with its dispatcher; the next one may have the same address.
    ~ggml_ridgefill_rpc_worker() {
        auto & list = ggml_ridgefill_rpc_lost_list::get();
        std::lock_guard<std::mutex> lock(list.mutex);
        list.dispatchers.erase(dispatcher);
    }

    void lost(const rpc_dispatcher * which) {
        auto & list = ggml_ridgefill_rpc_lost_list::get();
        std::lock_guard<std::mutex> lock(list.mutex);
        list.dispatchers.insert(dispatcher = which);
    }

    static ggml_ridgefill_rpc_worker & get() {
        thread_local ggml_ridgefill_rpc_worker worker;
        return worker;
    }
};

#define RPC_STATUS_ASSERT(x)                                                                                           \
    if (!(x))                                                                                                          \
    ggml_ridgefill_rpc_worker::get().failed = true

static bool ggml_ridgefill_rpc_alive() {
    return !ggml_ridgefill_rpc_worker::get().failed;
}

// Completes a message that was sent, or was not because the server is gone.
template <typename message>
static void ggml_ridgefill_rpc_finish(const rpc_dispatcher * dispatcher, message & msg) {
    auto & worker = ggml_ridgefill_rpc_worker::get();
    if (worker.failed) {
        worker.lost(dispatcher);
        if (msg.output) {
            memset(msg.output, 0, msg.output_size);
        }
        // the two zeros that ggml asserts on
        const uint64_t any = 4096;
        if (msg.cmd == RPC_CMD_BUFFER_GET_BASE || msg.cmd == RPC_CMD_GET_ALIGNMENT) {
            memcpy(msg.output, &any, sizeof(any));
        }
    }
    msg.completion.set_value();
}

// Callers find it by ggml_backend_reg_get_proc_address(reg, "ggml_ridgefill_rpc_lost").
static bool ggml_ridgefill_rpc_lost(ggml_backend_t backend) {
    const auto * ctx = (const ggml_backend_rpc_context *) backend->context;
    auto & list = ggml_ridgefill_rpc_lost_list::get();
    std::lock_guard<std::mutex> lock(list.mutex);
    return list.dispatchers.count(ctx->dispatcher.get()) > 0;
}
