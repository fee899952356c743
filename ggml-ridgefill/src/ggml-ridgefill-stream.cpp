#include "ggml-ridgefill-stream.h"

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

size_t pad(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

// A backend may wait for what another one of the same device has recorded. RPC: both are one queue.
bool queues_wait(ggml_backend_dev_t dev) {
    const char * name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
    return strcmp(name, "CUDA") == 0 || strcmp(name, "ROCm") == 0 || strncmp(name, "RPC", 3) == 0;
}

} // namespace

struct ggml_ridgefill_stream {
    struct slot {
        int map = -1;                  // what it holds, or will when `ready` has passed
        ggml_backend_event_ptr ready;  // the copy into it is done
        ggml_backend_event_ptr unread; // the op that reads it is done
    };

    std::mutex mutex;
    ggml_backend_ptr copier; // nullptr: no overlap
    ggml_backend_buffer_ptr buffer;
    std::vector<slot> slots;
    int n_maps = 0, n_tensors = 0;
    std::vector<ggml_tensor *> host, device;

    slot & slot_of(int map) { return slots[map % slots.size()]; }

    int next_in_slot(int map) const {
        const int next = map + (int) slots.size();
        return next < n_maps ? next : map % (int) slots.size();
    }

    // Behind the op that read the slot last.
    void fill(int map) {
        slot & s = slot_of(map);
        if (copier) {
            ggml_backend_event_wait(copier.get(), s.unread.get());
        }
        for (int k = map * n_tensors; k < (map + 1) * n_tensors; k++) {
            const void * data = host[k]->data;
            if (copier) {
                ggml_backend_tensor_set_async(copier.get(), device[k], data, 0, ggml_nbytes(host[k]));
            } else {
                ggml_backend_tensor_set(device[k], data, 0, ggml_nbytes(host[k]));
            }
        }
        if (copier) {
            ggml_backend_event_record(s.ready.get(), copier.get());
        }
        s.map = map;
    }

    // The op that reads the map comes next on the backend.
    void before(int map, ggml_backend_t backend) {
        if (slot_of(map).map != map) {
            fill(map);
        }
        if (copier) {
            ggml_backend_event_wait(backend, slot_of(map).ready.get());
        }
    }

    void after(int map, ggml_backend_t backend) {
        if (next_in_slot(map) == map) {
            return; // it stays
        }
        if (copier) {
            ggml_backend_event_record(slot_of(map).unread.get(), backend);
        } else {
            ggml_backend_synchronize(backend);
        }
        fill(next_in_slot(map));
    }

    void allocate(ggml_backend_dev_t dev);
};

namespace {

struct place {
    ggml_ridgefill_stream * stream;
    int map;
};

// Which map a tensor belongs to, of all streams.
struct registry {
    std::atomic<int> n{0};
    std::mutex mutex;
    std::unordered_map<const ggml_tensor *, place> places;

    static registry & get() {
        static registry r;
        return r;
    }

    bool find(const ggml_tensor * node, place & out) {
        const ggml_tensor * map = node->src[0];
        if (!map || map->op != GGML_OP_NONE || (node->op == GGML_OP_RIDGEFILL && !node->src[1])) {
            return false; // the rounding of x names a map without reading it
        }
        std::lock_guard<std::mutex> lock(mutex);
        const auto it = places.find(map);
        if (it == places.end()) {
            return false;
        }
        out = it->second;
        return true;
    }
};

} // namespace

// The tensors of a map lie alike in every slot.
void ggml_ridgefill_stream::allocate(ggml_backend_dev_t dev) {
    ggml_backend_buffer_type_t buft = ggml_backend_dev_buffer_type(dev);
    const size_t align = ggml_backend_buft_get_alignment(buft);
    std::vector<size_t> offset;
    size_t size = 0;
    for (int k = 0; k < n_tensors; k++) {
        offset.push_back(size);
        size += pad(ggml_backend_buft_get_alloc_size(buft, device[k]), align);
    }
    buffer.reset(ggml_backend_buft_alloc_buffer(buft, size * slots.size() + align));
    if (!buffer) {
        return;
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS); // ops run where it is
    char * base = (char *) ggml_backend_buffer_get_base(buffer.get());
    base += pad((size_t) base, align) - (size_t) base;
    for (int i = 0; i < n_maps * n_tensors; i++) {
        const size_t slot = i / n_tensors % slots.size();
        ggml_backend_tensor_alloc(buffer.get(), device[i], base + slot * size + offset[i % n_tensors]);
    }
}

ggml_ridgefill_stream * ggml_ridgefill_stream_new(
    ggml_backend_dev_t dev, int n_maps, int n_tensors, ggml_tensor ** host, ggml_tensor ** device
) {
    auto stream = std::make_unique<ggml_ridgefill_stream>();
    stream->n_maps = n_maps;
    stream->n_tensors = n_tensors;
    stream->host.assign(host, host + n_maps * n_tensors);
    stream->device.assign(device, device + n_maps * n_tensors);
    stream->slots.resize(std::min(n_maps, GGML_RIDGEFILL_SLOTS));
    stream->allocate(dev);
    if (!stream->buffer) {
        return nullptr;
    }
    for (int i = 0; i < (int) stream->slots.size(); i++) {
        stream->fill(i);
    }
    if (queues_wait(dev)) {
        stream->copier.reset(ggml_backend_dev_init(dev, nullptr));
        for (auto & slot : stream->slots) {
            slot.ready.reset(ggml_backend_event_new(dev));
            slot.unread.reset(ggml_backend_event_new(dev));
            if (!slot.ready || !slot.unread) {
                stream->copier.reset();
                break;
            }
        }
        for (auto & slot : stream->slots) {
            if (stream->copier) {
                ggml_backend_event_record(slot.ready.get(), stream->copier.get());
                ggml_backend_event_record(slot.unread.get(), stream->copier.get());
            }
        }
    }

    registry & r = registry::get();
    std::lock_guard<std::mutex> lock(r.mutex);
    for (int i = 0; i < n_maps * n_tensors; i++) {
        r.places[device[i]] = {stream.get(), i / n_tensors};
    }
    r.n++;
    return stream.release();
}

void ggml_ridgefill_stream_free(ggml_ridgefill_stream * stream) {
    if (!stream) {
        return;
    }
    if (stream->copier) {
        ggml_backend_synchronize(stream->copier.get());
    }
    {
        registry & r = registry::get();
        std::lock_guard<std::mutex> lock(r.mutex);
        for (const ggml_tensor * t : stream->device) {
            r.places.erase(t);
        }
        r.n--;
    }
    delete stream;
}

size_t ggml_ridgefill_stream_size(const ggml_ridgefill_stream * stream) {
    return ggml_backend_buffer_get_size(stream->buffer.get());
}

bool ggml_ridgefill_stream_overlaps(const ggml_ridgefill_stream * stream) {
    return stream->copier != nullptr;
}

ggml_status ggml_ridgefill_stream_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    const auto run = [&](int begin, int end) {
        ggml_cgraph part = ggml_graph_view(graph, begin, end);
        return begin < end ? backend->iface.graph_compute(backend, &part) : GGML_STATUS_SUCCESS;
    };
    int done = 0;
    ggml_status status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < graph->n_nodes && registry::get().n > 0 && status == GGML_STATUS_SUCCESS; i++) {
        place p;
        if (!registry::get().find(graph->nodes[i], p)) {
            continue;
        }
        std::lock_guard<std::mutex> lock(p.stream->mutex);
        status = run(done, i); // first, so that the device has work while the host sees to the map
        if (status == GGML_STATUS_SUCCESS) {
            p.stream->before(p.map, backend);
            status = run(i, i + 1);
            p.stream->after(p.map, backend);
        }
        done = i + 1;
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    return done == 0 ? backend->iface.graph_compute(backend, graph) : run(done, graph->n_nodes);
}
