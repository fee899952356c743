#pragma once

// A small graph with caches, for tests of the graph rewrite: compute tensors without memory, caches with a buffer.

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include "ggml-impl.h" // a graph's nodes, leafs and flags

#include <cstring>
#include <map>
#include <string>
#include <vector>

struct world {
    ggml_backend_ptr backend{ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)};
    ggml_context_ptr ctx{ggml_init({1024 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})};
    ggml_cgraph * gf = ggml_new_graph(ctx.get());

    std::vector<ggml_context_ptr> fixed; // one per cache
    std::vector<ggml_backend_buffer_ptr> buffers;

    std::map<ggml_tensor *, std::vector<float>> inputs;
    std::map<ggml_tensor *, std::vector<int64_t>> rows;

    // memory allocated before the graph, as a KV cache is
    ggml_tensor * cache(const char * name, int64_t ne0, int64_t ne1, float value = 0.0f) {
        fixed.emplace_back(ggml_init({ggml_tensor_overhead(), nullptr, true}));
        ggml_tensor * t = ggml_new_tensor_2d(fixed.back().get(), GGML_TYPE_F32, ne0, ne1);
        ggml_set_name(t, name);
        buffers.emplace_back(ggml_backend_alloc_ctx_tensors(fixed.back().get(), backend.get()));
        const std::vector<float> v((size_t) (ne0 * ne1), value);
        ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
        return t;
    }

    ggml_tensor * input(const char * name, int64_t ne0, int64_t ne1, std::vector<float> values) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, ne0, ne1);
        ggml_set_name(t, name);
        ggml_set_input(t);
        inputs[t] = std::move(values);
        return t;
    }

    // values 1, 2, 3, ... times step
    ggml_tensor * ramp(const char * name, int64_t ne0, int64_t ne1, float step = 1.0f) {
        std::vector<float> v((size_t) (ne0 * ne1));
        for (size_t i = 0; i < v.size(); ++i) {
            v[i] = step * (float) (i + 1);
        }
        return input(name, ne0, ne1, v);
    }

    // a weight: a leaf that is no input, so that it may be dropped
    ggml_tensor * weight(const char * name, int64_t ne0, int64_t ne1, float step = 1.0f) {
        ggml_tensor * t = ramp(name, ne0, ne1, step);
        t->flags &= ~GGML_TENSOR_FLAG_INPUT;
        return t;
    }

    ggml_tensor * indices(const char * name, std::vector<int64_t> ids) {
        ggml_tensor * t = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I64, (int64_t) ids.size());
        ggml_set_name(t, name);
        ggml_set_input(t);
        rows[t] = std::move(ids);
        return t;
    }

    ggml_tensor * named(ggml_tensor * t, const char * name) { return ggml_set_name(t, name); }

    ggml_tensor * expand(ggml_tensor * t) {
        ggml_build_forward_expand(gf, t);
        return t;
    }

    // copies t into row r.. of a cache
    ggml_tensor * store(ggml_tensor * t, ggml_tensor * cache, int64_t r = 0) {
        ggml_tensor * dst = ggml_view_1d(ctx.get(), cache, ggml_nelements(t), (size_t) r * cache->nb[1]);
        return expand(ggml_cpy(ctx.get(), t, dst));
    }

    std::vector<std::string> names() const {
        std::vector<std::string> res;
        for (int i = 0; i < gf->n_nodes; ++i) {
            res.push_back(gf->nodes[i]->name);
        }
        return res;
    }

    bool has_node(const ggml_tensor * t) const { return index(t) >= 0; }
    int index(const ggml_tensor * t) const {
        for (int i = 0; i < gf->n_nodes; ++i) {
            if (gf->nodes[i] == t) {
                return i;
            }
        }
        return -1;
    }
    bool has_leaf(const ggml_tensor * t) const {
        for (int i = 0; i < gf->n_leafs; ++i) {
            if (gf->leafs[i] == t) {
                return true;
            }
        }
        return false;
    }

    // everything that a rewrite may change
    struct snapshot {
        std::vector<const ggml_tensor *> order;
        std::vector<ggml_tensor> values;

        bool operator==(const snapshot & o) const {
            if (order != o.order || values.size() != o.values.size()) {
                return false;
            }
            for (size_t i = 0; i < values.size(); ++i) {
                const ggml_tensor & a = values[i];
                const ggml_tensor & b = o.values[i];
                if (memcmp(a.src, b.src, sizeof(a.src)) != 0 || a.view_src != b.view_src || a.view_offs != b.view_offs
                    || a.flags != b.flags || a.op != b.op) {
                    return false;
                }
            }
            return true;
        }
    };

    snapshot take() const {
        snapshot s;
        for (int i = 0; i < gf->n_nodes; ++i) {
            s.order.push_back(gf->nodes[i]);
            s.values.push_back(*gf->nodes[i]);
        }
        for (int i = 0; i < gf->n_leafs; ++i) {
            s.order.push_back(gf->leafs[i]);
        }
        return s;
    }

    // allocates the graph as a context does, sets the inputs, computes
    void run() {
        ggml_gallocr_ptr alloc{ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend.get()))};
        GGML_ASSERT(ggml_gallocr_alloc_graph(alloc.get(), gf));
        for (auto & [t, v] : inputs) {
            if (t->data) {
                ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
            }
        }
        for (auto & [t, v] : rows) {
            if (t->data) {
                ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
            }
        }
        GGML_ASSERT(ggml_backend_graph_compute(backend.get(), gf) == GGML_STATUS_SUCCESS);
    }

    static std::vector<float> read(const ggml_tensor * cache) {
        std::vector<float> v((size_t) ggml_nelements(cache));
        ggml_backend_tensor_get(cache, v.data(), 0, ggml_nbytes(cache));
        return v;
    }
};
