// Maps in host memory: whatever order graphs read them in, each op sees its own map. The CPU plays the device, so
// copies wait; queues that do not are in tests/server/test_rpc.py.

#include "check.h"
#include "ggml-ridgefill-stream.h"
#include "op-case.h"

#include <atomic>
#include <numeric>
#include <thread>

namespace {

const op_case CASE = {256, 64, 5};
constexpr int N_MAPS = 7; // slots are used more than once, not equally often

struct maps {
    ggml_context_ptr ctx{ggml_init({64 * ggml_tensor_overhead(), nullptr, true})};
    ggml_context_ptr ctx_host{ggml_init({64 * ggml_tensor_overhead(), nullptr, true})};
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor *> device, host; // codes, scale of each map
    std::vector<op_data> data;
    ggml_ridgefill_stream * stream = nullptr;

    explicit maps(int n) {
        for (int i = 0; i < n; i++) {
            op_case c = CASE;
            c.seed = uint32_t(i + 1);
            data.push_back(op_make_data(c));
            device.push_back(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I8, c.n_in, c.n_out));
            device.push_back(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_BF16, c.n_groups(), c.n_out));
            host.push_back(ggml_dup_tensor(ctx_host.get(), device[2 * i]));
            host.push_back(ggml_dup_tensor(ctx_host.get(), device[2 * i + 1]));
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_host.get(), ggml_backend_cpu_buffer_type()));
        for (int i = 0; i < n; i++) {
            ggml_backend_tensor_set(host[2 * i], data[i].codes.data(), 0, ggml_nbytes(host[2 * i]));
            ggml_backend_tensor_set(host[2 * i + 1], data[i].scale.data(), 0, ggml_nbytes(host[2 * i + 1]));
        }
        ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        stream = ggml_ridgefill_stream_new(dev, n, 2, host.data(), device.data());
    }
    ~maps() { ggml_ridgefill_stream_free(stream); }
};

// One graph with an op for each map of `order`; is every result that of its map?
bool right(ggml_backend_t backend, const maps & m, const std::vector<int> & order) {
    ggml_context_ptr ctx{ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})};
    ggml_tensor * x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, CASE.n_in, CASE.n_rows);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    std::vector<ggml_tensor *> results;
    for (const int i : order) {
        ggml_tensor * rounded = ggml_ridgefill_round(ctx.get(), m.device[2 * i], x); // reads no map
        results.push_back(ggml_ridgefill_rounded(ctx.get(), m.device[2 * i], m.device[2 * i + 1], nullptr, rounded));
        ggml_build_forward_expand(graph, results.back());
    }
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend));
    ggml_backend_tensor_set(x, m.data[0].x.data(), 0, ggml_nbytes(x));
    GGML_ASSERT(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS);
    for (size_t k = 0; k < order.size(); k++) {
        op_case c = CASE;
        c.bias = false;
        op_data d = m.data[order[k]];
        d.x = m.data[0].x;
        std::vector<float> y(c.n_rows * c.n_out);
        ggml_backend_tensor_get(results[k], y.data(), 0, y.size() * sizeof(float));
        const op_errors e = op_compare(c, d, y);
        if (e.n_unset > 0 || !e.nmse_ok()) {
            return false;
        }
    }
    return true;
}

std::vector<int> ascending(int n) {
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    return order;
}

ggml_backend_ptr cpu() {
    return ggml_backend_ptr(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
}

} // namespace

int main() {
    ggml_backend_load_all();
    const ggml_backend_ptr backend = cpu();

    for (const int n : {1, GGML_RIDGEFILL_SLOTS, N_MAPS, 3 * GGML_RIDGEFILL_SLOTS}) {
        check::begin("in order, " + std::to_string(n) + " maps");
        const maps m(n);
        CHECK(m.stream != nullptr);
        for (int rounds = 0; rounds < 3; rounds++) {
            CHECK(right(backend.get(), m, ascending(n)));
        }
        const size_t map = ggml_nbytes(m.device[0]) + ggml_nbytes(m.device[1]);
        const size_t size = ggml_ridgefill_stream_size(m.stream);
        const int n_slots = std::min(n, GGML_RIDGEFILL_SLOTS);
        CHECK(size >= n_slots * map && size < (n_slots + 1) * map);
    }

    check::begin("any order, maps left out, a map read twice");
    const maps m(N_MAPS), other(N_MAPS);
    std::mt19937 random(3);
    for (int round = 0; round < 50; round++) {
        std::vector<int> order(1 + random() % 10);
        std::generate(order.begin(), order.end(), [&] { return int(random() % N_MAPS); });
        CHECK(right(backend.get(), m, order));
        CHECK(right(backend.get(), other, order)); // a stream of its own
    }

    check::begin("two threads, one stream");
    std::atomic<int> n_wrong{0};
    const auto work = [&](bool backwards) {
        const ggml_backend_ptr own = cpu();
        std::vector<int> order = ascending(N_MAPS);
        if (backwards) {
            std::reverse(order.begin(), order.end());
        }
        for (int round = 0; round < 50; round++) {
            n_wrong += !right(own.get(), m, order);
        }
    };
    std::thread a(work, false), b(work, true);
    a.join();
    b.join();
    CHECK(n_wrong == 0);

    check::begin("a graph without maps, after the streams are gone");
    CHECK(op_compare(CASE, op_make_data(CASE), op_run(backend.get(), CASE, op_make_data(CASE))).nmse_ok());
    return check::finish();
}
