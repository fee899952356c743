#include "llama-ridgefill-rewrite.h"

#include "ggml-backend.h"

#include <unordered_map>
#include <unordered_set>

#include "ggml-impl.h" // a graph's leafs have no public accessor

namespace {

using tensor_set = std::unordered_set<const ggml_tensor *>;
using tensor_map = std::unordered_map<const ggml_tensor *, ggml_tensor *>;

// Compute tensors have no buffer while the graph is built, so a viewed tensor with one is a cache or a state.
bool writes_outside(const ggml_tensor * t) {
    return t->view_src && t->view_src->buffer && !ridgefill_is_pure_view(t) && (t->flags & GGML_TENSOR_FLAG_COMPUTE);
}

// The graph as it will be after the redirects, without touching it.
struct redirected_view {
    tensor_map to; // target -> replacement

    ggml_tensor * src(const ggml_tensor * t, int i) const {
        ggml_tensor * s = t->src[i];
        const auto it = to.find(s);
        return it == to.end() ? s : it->second;
    }
};

void mark_needed(const redirected_view & view, ggml_tensor * root, tensor_set & needed) {
    std::vector<ggml_tensor *> stack = {root};
    while (!stack.empty()) {
        ggml_tensor * t = stack.back();
        stack.pop_back();
        if (!needed.insert(t).second) {
            continue;
        }
        for (int i = 0; i < GGML_MAX_SRC; ++i) {
            if (ggml_tensor * s = view.src(t, i)) {
                stack.push_back(s);
            }
        }
    }
}

// What keeps a replacement from being computed: a target that it reads, or one that is computed from it once the
// graph's nodes read replacements. nullptr: nothing. own: the graph's nodes; done: what earlier calls found in order.
const ggml_tensor *
find_obstacle(ggml_tensor * replacement, const redirected_view & view, const tensor_set & own, tensor_set & done) {
    struct visit {
        ggml_tensor * t;
        int next;
    };
    std::vector<visit> stack = {{replacement, 0}};
    tensor_set open = {replacement};
    while (!stack.empty()) {
        visit & v = stack.back();
        if (v.next == GGML_MAX_SRC || done.count(v.t)) {
            open.erase(v.t);
            done.insert(v.t);
            stack.pop_back();
            continue;
        }
        const int i = v.next++;
        ggml_tensor * raw = v.t->src[i];
        if (!raw || raw == v.t) { // a cast names itself
            continue;
        }
        if (view.to.count(raw) && !own.count(v.t)) {
            return raw;
        }
        ggml_tensor * s = view.src(v.t, i);
        if (!open.insert(s).second) {
            return raw;
        }
        stack.push_back({s, 0});
    }
    return nullptr;
}

// Every node that is computed from `source`, itself included.
tensor_set find_dependents(const std::vector<ggml_tensor *> & nodes, const ggml_tensor * source) {
    tensor_set res = {source};
    for (const ggml_tensor * n : nodes) {
        bool depends = n->view_src && res.count(n->view_src);
        for (int i = 0; i < GGML_MAX_SRC && !depends; ++i) {
            depends = n->src[i] && res.count(n->src[i]);
        }
        if (depends) {
            res.insert(n);
        }
    }
    return res;
}

// The cache writes of a part, in order.
std::vector<ggml_tensor *> find_writes(const std::vector<ggml_tensor *> & nodes, const ridgefill_section & part) {
    std::vector<ggml_tensor *> res;
    if (part.what == ridgefill_section::NONE) {
        return res;
    }
    const bool all = part.what == ridgefill_section::ALL;
    const tensor_set after = all ? tensor_set() : find_dependents(nodes, part.source);
    for (ggml_tensor * n : nodes) {
        if (writes_outside(n) && (all || (part.what == ridgefill_section::AFTER) == (after.count(n) > 0))) {
            res.push_back(n);
        }
    }
    return res;
}

// Which source does t view? Ops differ in the slot (a view has it in src[0], set_rows in src[2]).
int viewed_source(const ggml_tensor * t) {
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        if (t->src[i] && ridgefill_storage_of(t->src[i]) == t->view_src) {
            return i;
        }
    }
    return -1;
}

// Views are stored flat (view_src is the root of a chain), so a redirected source alone would leave a view reading the
// old memory. Points t at the storage of its new source; offs_old is the old source's offset in the old storage.
void reroot(ggml_tensor * t, size_t offs_old, const ggml_tensor * src_new) {
    GGML_ASSERT(t->view_offs >= offs_old); // a view never starts before what it views
    t->view_offs = t->view_offs - offs_old + src_new->view_offs;
    t->view_src = const_cast<ggml_tensor *>(ridgefill_storage_of(src_new));
}

} // namespace

bool ridgefill_is_pure_view(const ggml_tensor * t) {
    switch (t->op) {
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    default:
        return false;
    }
}

const ggml_tensor * ridgefill_storage_of(const ggml_tensor * t) {
    return t->view_src ? t->view_src : t;
}

bool ridgefill_rewrite(
    ggml_cgraph * gf, const std::vector<ridgefill_redirect> & redirects, const std::vector<ggml_tensor *> & extra_roots,
    ridgefill_rewrite_stats & stats, std::string & reason, const std::function<bool(const ggml_tensor *)> & must_go,
    const ridgefill_section & part
) {
    const std::vector<ggml_tensor *> nodes(gf->nodes, gf->nodes + gf->n_nodes);
    const std::vector<ggml_tensor *> leafs(gf->leafs, gf->leafs + gf->n_leafs);

    stats = {};
    stats.n_nodes_before = (int) nodes.size();

    redirected_view view;
    for (const auto & r : redirects) {
        if (!ggml_are_same_shape(r.target, r.replacement) || r.target->type != r.replacement->type) {
            reason = std::string("shape or type of the replacement differs from ") + r.target->name;
            return false;
        }
        if (ridgefill_storage_of(r.target)->buffer) {
            reason = std::string(r.target->name) + " lies in memory allocated before the graph";
            return false;
        }
        view.to[r.target] = r.replacement;
    }

    // requires
    {
        std::unordered_map<const ggml_tensor *, int> uses;
        for (const ggml_tensor * n : nodes) {
            for (int i = 0; i < GGML_MAX_SRC; ++i) {
                if (n->src[i] && view.to.count(n->src[i])) {
                    uses[n->src[i]]++;
                    stats.n_uses++;
                }
            }
        }
        for (const auto & r : redirects) {
            if (uses[r.target] == 0) {
                reason = std::string("no use of ") + r.target->name;
                return false;
            }
        }
        const tensor_set own(nodes.begin(), nodes.end());
        tensor_set done;
        for (const auto & r : redirects) {
            if (const ggml_tensor * t = find_obstacle(r.replacement, view, own, done)) {
                reason = std::string("the replacement of ") + r.target->name + " depends on " + t->name;
                return false;
            }
        }
    }

    tensor_set needed;
    for (ggml_tensor * n : find_writes(nodes, part)) {
        mark_needed(view, n, needed);
        stats.n_roots++;
    }
    for (ggml_tensor * n : extra_roots) {
        mark_needed(view, n, needed);
        stats.n_roots++;
    }

    for (const auto & r : redirects) {
        if (needed.count(r.target)) {
            reason = std::string(r.target->name) + " is still needed";
            return false;
        }
    }
    for (const ggml_tensor * n : nodes) {
        if (must_go && needed.count(n) && must_go(n)) {
            reason = std::string(n->name) + " is still needed";
            return false;
        }
    }

    {
        tensor_set storage; // memory that is read
        for (const ggml_tensor * n : needed) {
            storage.insert(ridgefill_storage_of(n));
        }
        tensor_set replaced; // memory of the targets so far: their readers will read the replacements'
        for (const ggml_tensor * n : nodes) {
            const bool in_place = n->view_src && !ridgefill_is_pure_view(n) && !n->view_src->buffer;
            if (in_place && !needed.count(n) && (storage.count(n->view_src) || replaced.count(n->view_src))) {
                reason = std::string("in-place op ") + n->name + " would be dropped but its memory is read";
                return false;
            }
            if (view.to.count(n)) {
                replaced.insert(ridgefill_storage_of(n));
            }
        }
    }

    // rewrite
    std::vector<int> slot(nodes.size(), -1); // before any view moves: a view of a view names its source's old storage
    for (size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i]->view_src && !nodes[i]->view_src->buffer) {
            slot[i] = viewed_source(nodes[i]);
        }
    }
    std::unordered_map<const ggml_tensor *, size_t> offs_old; // of targets and re-rooted views
    for (const auto & r : redirects) {
        offs_old[r.target] = r.target->view_offs;
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
        ggml_tensor * n = nodes[i];
        if (!needed.count(n)) {
            continue;
        }
        if (slot[i] >= 0 && offs_old.count(n->src[slot[i]])) {
            offs_old[n] = n->view_offs;
            reroot(n, offs_old[n->src[slot[i]]], view.src(n, slot[i]));
            stats.n_reroots++;
        }
        for (int j = 0; j < GGML_MAX_SRC; ++j) {
            n->src[j] = view.src(n, j);
        }
    }

    ggml_graph_clear(gf);
    for (ggml_tensor * l : leafs) {
        // inputs are set even when nothing reads them, so they must stay allocated
        if (l->flags & GGML_TENSOR_FLAG_INPUT) {
            ggml_build_forward_expand(gf, l);
        }
    }
    std::unordered_map<const ggml_tensor *, const std::vector<ggml_tensor *> *> steps; // of replacements not used yet
    for (const auto & r : redirects) {
        steps[r.replacement] = &r.steps;
    }
    for (ggml_tensor * n : nodes) {
        if (!needed.count(n)) {
            continue;
        }
        for (const ggml_tensor * s : n->src) {
            const auto it = steps.find(s);
            if (it != steps.end()) {
                for (ggml_tensor * t : *it->second) {
                    ggml_build_forward_expand(gf, t);
                }
                steps.erase(it);
            }
        }
        ggml_build_forward_expand(gf, n);
    }
    stats.n_nodes_after = gf->n_nodes;

    return true;
}

tensor_set
ridgefill_written_from(ggml_cgraph * gf, const std::vector<ggml_tensor *> & stops, const ridgefill_section & part) {
    const std::vector<ggml_tensor *> nodes(gf->nodes, gf->nodes + gf->n_nodes);
    tensor_set res(stops.begin(), stops.end());
    for (ggml_tensor * n : find_writes(nodes, part)) {
        mark_needed({}, n, res);
    }
    for (const ggml_tensor * t : stops) {
        res.erase(t);
    }
    return res;
}

bool ridgefill_rewrite_verify(
    ggml_cgraph * gf, const std::vector<ridgefill_redirect> & redirects, std::string & reason
) {
    tensor_set seen(gf->leafs, gf->leafs + gf->n_leafs);
    tensor_set targets;
    for (const auto & r : redirects) {
        targets.insert(r.target);
    }
    for (int i = 0; i < gf->n_nodes; ++i) {
        const ggml_tensor * n = gf->nodes[i];
        for (int j = 0; j < GGML_MAX_SRC; ++j) {
            const ggml_tensor * s = n->src[j];
            if (!s || s == n) { // a cast names itself
                continue;
            }
            if (targets.count(s)) {
                reason = std::string(n->name) + " reads the redirected " + s->name;
                return false;
            }
            if (!seen.count(s)) {
                reason = std::string(n->name) + " comes before its source " + s->name;
                return false;
            }
        }
        if (n->view_src && !n->view_src->buffer && !seen.count(n->view_src)) {
            reason = std::string(n->name) + " views " + n->view_src->name + ", which is not in the graph";
            return false;
        }
        seen.insert(n);
    }
    return true;
}
