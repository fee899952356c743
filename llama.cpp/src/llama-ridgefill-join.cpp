#include "llama-ridgefill-join.h"

#include "llama-ridgefill-rewrite.h"

#include <cstring>

namespace {

// A leaf with values. Others have a shape only: an op fills them.
bool is_input(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE && ((t->flags & GGML_TENSOR_FLAG_INPUT) || t->data || t->buffer);
}

// The one dimension that the shapes differ in, or -1.
int row_dim(const ggml_tensor * some, const ggml_tensor * all) {
    int dim = -1;
    for (int d = 0; d < GGML_MAX_DIMS; ++d) {
        if (some->ne[d] != all->ne[d]) {
            if (dim >= 0) {
                return -1;
            }
            dim = d;
        }
    }
    return dim;
}

} // namespace

ridgefill_join::ridgefill_join(
    ggml_context * ctx, ggml_cgraph * all, int64_t n_all, ggml_tensor * ids,
    std::unordered_set<const ggml_tensor *> kept, const std::vector<ggml_tensor *> & own
)
    : ctx(ctx), n_all(n_all), ids(ids), kept(std::move(kept)) {
    for (ggml_tensor * t : own) {
        value[t] = t;
    }
    for (int i = 0; i < ggml_graph_n_nodes(all); ++i) {
        const ggml_tensor * n = ggml_graph_node(all, i);
        if (n->view_src && !ridgefill_is_pure_view(n)) {
            overwritten.insert(n->view_src);
        }
    }
}

ggml_tensor * ridgefill_join::fail(const ggml_tensor * t, const char * what) {
    why = why.empty() ? std::string(t->name) + " " + what : why; // the first is the cause
    return nullptr;
}

// What exists whether or not `some` is computed. A view of such memory costs nothing, and a packed result (a scan's
// rows with its state) has rows only when it is viewed.
bool ridgefill_join::is_given(const ggml_tensor * all) const {
    return is_input(all) || kept.count(all) > 0
           || (ridgefill_is_pure_view(all) && all->src[0] && is_given(all->src[0]));
}

// The rows `ids` of `all` in the shape of `some`: rows are the last dimension but for sequences of equal length.
ggml_tensor * ridgefill_join::gather(const ggml_tensor * some, ggml_tensor * all) {
    const int d = row_dim(some, all);
    if (d < 0 || some->type != all->type) {
        return fail(some, "has another form for fewer rows");
    }
    int64_t n_seqs = 1, width = 1;
    for (int i = 0; i < GGML_MAX_DIMS; ++i) {
        (i < d ? width : n_seqs) *= i == d ? 1 : all->ne[i];
    }
    if (all->ne[d] * n_seqs != n_all || some->ne[d] * n_seqs != ggml_nelements(ids)) {
        return fail(some, "has no row per token");
    }
    if (overwritten.count(ridgefill_storage_of(all))) {
        return fail(all, "is overwritten");
    }
    ggml_tensor * x = ggml_is_contiguous(all) ? all : ggml_cont(ctx, all);
    x = ggml_reshape_4d(ctx, x, width, all->ne[d], 1, n_seqs);
    x = ggml_get_rows(ctx, x, ggml_reshape_3d(ctx, ids, some->ne[d], 1, n_seqs));
    if (x->type != some->type) { // rows come as F32
        x = ggml_cast(ctx, x, some->type);
    }
    x = ggml_reshape_4d(ctx, x, some->ne[0], some->ne[1], some->ne[2], some->ne[3]);
    ggml_format_name(x, "%s (some)", all->name);
    return x;
}

bool ridgefill_join::compute(ggml_tensor * some, ggml_tensor * all) {
    // a parameter that follows from the number of rows means something else for fewer
    const bool same =
        ridgefill_is_pure_view(some) || memcmp(some->op_params, all->op_params, sizeof(all->op_params)) == 0;
    if (some->op != all->op || !same) {
        return fail(some, "is computed in another way for fewer rows");
    }
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        ggml_tensor * s = some->src[i];
        if (!s != !all->src[i]) {
            return fail(some, "has other sources for fewer rows");
        }
        if (!s || s == some) { // a cast names itself
            continue;
        }
        ggml_tensor * v = find(s, all->src[i]);
        if (!v) {
            return false;
        }
        if (v != s && ridgefill_storage_of(s) == some->view_src) {
            return fail(some, "overwrites what all rows use");
        }
        some->src[i] = v;
    }
    return true;
}

ggml_tensor * ridgefill_join::find(ggml_tensor * some, ggml_tensor * all) {
    if (some == all) { // a weight, a cache
        return some;
    }
    const auto known = value.find(some);
    if (known != value.end()) {
        return known->second;
    }
    const bool own = ridgefill_is_pure_view(some) && some->src[0] && value.count(some->src[0])
                     && value.at(some->src[0]) == some->src[0];
    if (!own && is_given(all)) {
        return value[some] = ggml_are_same_shape(some, all) && some->type == all->type ? all : gather(some, all);
    }
    value[some] = some;
    if (compute(some, all)) {
        return some;
    }
    return value[some] = gather(some, all); // computed for all rows
}

bool ridgefill_join::take(ggml_tensor * some, ggml_tensor * all) {
    why.clear();
    if (find(some, all) != some) {
        return fail(some, "is computed for all rows");
    }
    std::vector<const ggml_tensor *> stack = {some};
    while (!stack.empty()) {
        const ggml_tensor * t = stack.back();
        stack.pop_back();
        if (t && taken.insert(t).second) {
            stack.insert(stack.end(), t->src, t->src + GGML_MAX_SRC);
        }
    }
    return true;
}
