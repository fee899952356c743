// The graph rewrite on random graphs: whatever it accepts must compute what the redirected graph means. The meaning
// comes from an interpreter of its own, which runs every node in order on plain memory and drops nothing.
//
// usage: test-rewrite-random [n_seeds] [first_seed]

#include "llama-ridgefill-rewrite.h"

#include "check.h"
#include "pass/world.h"

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>

namespace {

constexpr int N = 4; // columns; a tensor has 8 rows, or 4 when it is half of one

enum kind {
    INPUT,
    CACHE,
    ADD,
    MUL,
    SCALE,
    TURN,
    HALF,
    RESHAPE,
    READ,
    SCALE_INPLACE,
    ADD_INPLACE,
    WRITE,
    SET_ROWS,
    N_KINDS
};

struct item {
    kind what;
    int a = -1, b = -1; // operands; WRITE and SET_ROWS: a goes into the cache b
    float s = 0.0f;
    int row = 0;
    int rows = 8;
};

struct program {
    std::vector<item> items;
    struct change {
        int target;
        int source; // the replacement is source * s
        float s;
    };
    std::vector<change> changes;
    int extra_root = -1;
};

bool is_view(kind k) {
    return k == HALF || k == RESHAPE || k == READ;
}
bool is_inplace(kind k) {
    return k == SCALE_INPLACE || k == ADD_INPLACE;
}
bool is_op(kind k) {
    return k >= ADD;
}

// ---- meaning ----

struct memory {
    std::shared_ptr<std::vector<float>> cells;
    size_t offset = 0;
};

struct interpreter {
    const program & p;
    std::vector<memory> mem;
    std::vector<memory> replaced; // by change, computed just before the first use

    explicit interpreter(const program & p) : p(p), mem(p.items.size()), replaced(p.changes.size()) {}

    static memory fresh(size_t n) { return {std::make_shared<std::vector<float>>(n), 0}; }

    float * at(const memory & m) { return m.cells->data() + m.offset; }

    memory operand(int i) {
        for (size_t c = 0; c < p.changes.size(); ++c) {
            if (p.changes[c].target == i) {
                if (!replaced[c].cells) {
                    const int n = N * p.items[i].rows;
                    replaced[c] = fresh(n);
                    const float * x = at(mem[p.changes[c].source]);
                    for (int k = 0; k < n; ++k) {
                        at(replaced[c])[k] = x[k] * p.changes[c].s;
                    }
                }
                return replaced[c];
            }
        }
        return mem[i];
    }

    void run(const std::vector<std::vector<float>> & initial) {
        for (size_t i = 0; i < p.items.size(); ++i) {
            const item & t = p.items[i];
            const int n = N * t.rows;
            if (!is_op(t.what)) {
                mem[i] = fresh(n);
                *mem[i].cells = initial[i];
                continue;
            }
            const memory a = operand(t.a);
            const memory b = t.b >= 0 ? operand(t.b) : memory();
            memory r = is_view(t.what) || is_inplace(t.what) ? a : fresh(n);
            switch (t.what) {
            case ADD:
            case ADD_INPLACE:
                for (int k = 0; k < n; ++k) {
                    at(r)[k] = at(a)[k] + at(b)[k];
                }
                break;
            case MUL:
                for (int k = 0; k < n; ++k) {
                    at(r)[k] = at(a)[k] * at(b)[k];
                }
                break;
            case SCALE:
            case SCALE_INPLACE:
                for (int k = 0; k < n; ++k) {
                    at(r)[k] = at(a)[k] * t.s;
                }
                break;
            case TURN:
                for (int j = 0; j < t.rows; ++j) {
                    for (int k = 0; k < N; ++k) {
                        at(r)[k * t.rows + j] = at(a)[j * N + k];
                    }
                }
                break;
            case HALF:
            case READ:
                r.offset += (size_t) t.row * N;
                break;
            case WRITE:
                r.cells = b.cells;
                r.offset = b.offset + (size_t) t.row * N;
                memcpy(at(r), at(a), n * sizeof(float));
                break;
            case SET_ROWS: // rows in reverse order
                r = b;
                for (int j = 0; j < t.rows; ++j) {
                    memcpy(at(r) + (t.row + t.rows - 1 - j) * N, at(a) + j * N, N * sizeof(float));
                }
                break;
            default:
                break;
            }
            mem[i] = r;
        }
    }
};

// ---- generator ----

struct generator {
    std::mt19937 rng;
    program p;

    int below(int n) { return (int) (rng() % (uint32_t) n); }
    float factor() { return (float) (1 + below(7)) * (below(2) ? 0.25f : -0.25f); }

    // an earlier tensor of that many rows (0: any) that is no cache
    int pick(int rows) {
        for (int tries = 0; tries < 60; ++tries) {
            const int i = below((int) p.items.size());
            // recent ones more often, so that graphs become deep
            const int j = below(2) ? i : (int) p.items.size() - 1 - below(std::min<int>(6, (int) p.items.size()));
            const item & t = p.items[j];
            if (t.what != CACHE && t.what != WRITE && t.what != SET_ROWS && (rows == 0 || t.rows == rows)) {
                return j;
            }
        }
        return rows == 4 ? -1 : 0;
    }

    void add(int n_caches) {
        item t;
        t.what = (kind) (ADD + below(N_KINDS - ADD));
        if (is_inplace(t.what) && below(3) != 0) {
            t.what = SCALE; // few in-place ops, or nearly every graph is refused
        }
        t.a = pick(t.what == HALF ? 8 : 0);
        t.rows = p.items[t.a].rows;
        t.s = factor();
        switch (t.what) {
        case ADD:
        case MUL:
        case ADD_INPLACE:
            t.b = pick(t.rows);
            t.what = t.b < 0 ? SCALE : t.what;
            if (t.what == ADD_INPLACE && owner(t.a) == owner(t.b)) { // rows over each other: no defined meaning
                t.what = ADD;
            }
            break;
        case HALF:
            t.rows = 4;
            t.row = below(5);
            break;
        case READ:
            t.a = 2 + below(n_caches);
            t.rows = 4;
            t.row = below(5);
            break;
        case WRITE:
        case SET_ROWS:
            t.b = 2 + below(n_caches);
            t.row = t.rows == 8 ? 0 : below(5);
            if (owner(t.a) == t.b) { // rows of a cache onto themselves: no defined meaning
                t.a = 0;
                t.rows = 8;
                t.row = 0;
            }
            break;
        default:
            break;
        }
        p.items.push_back(t);
    }

    bool depends(int i, int on) const {
        if (i == on) {
            return true;
        }
        const item & t = p.items[i];
        return is_op(t.what) && (depends(t.a, on) || (t.b >= 0 && depends(t.b, on)));
    }

    // the tensor that owns i's memory
    int owner(int i) const {
        const item & t = p.items[i];
        if (is_view(t.what) || is_inplace(t.what)) {
            return owner(t.a);
        }
        return t.what == WRITE || t.what == SET_ROWS ? owner(t.b) : i;
    }

    bool used(int i) const {
        for (const item & t : p.items) {
            if (t.a == i || t.b == i) {
                return true;
            }
        }
        return false;
    }

    bool changes_later(int i) const {
        for (const item & t : p.items) {
            if ((is_inplace(t.what) && owner(t.a) == owner(i)) || p.items[owner(i)].what == CACHE) {
                return true;
            }
        }
        return false;
    }

    program make(uint32_t seed) {
        rng.seed(seed);
        p.items = {{INPUT}, {INPUT}};
        const int n_caches = 1 + below(3);
        for (int c = 0; c < n_caches; ++c) {
            p.items.push_back({CACHE});
        }
        const int n_ops = 6 + below(30);
        for (int i = 0; i < n_ops; ++i) {
            add(n_caches);
        }
        p.items.push_back({WRITE, 1, 2, 0.0f, 0, 8});
        for (int tries = 0, n = 1 + below(3); tries < 40 && (int) p.changes.size() < n; ++tries) {
            const int t = 2 + n_caches + below(n_ops);
            const int s = below(t);
            bool ok = p.items[s].rows == p.items[t].rows && !changes_later(s) && p.items[t].what != WRITE
                      && p.items[t].what != SET_ROWS;
            ok = ok && !depends(s, t) && (used(t) || below(20) == 0);
            for (const auto & c : p.changes) {
                ok = ok && c.target != t && c.target != s && c.source != t; // but it may be computed from one
            }
            if (ok) {
                p.changes.push_back({t, s, factor()});
            }
        }
        if (below(6) == 0) {
            p.extra_root = below((int) p.items.size() - 1);
        }
        return p;
    }
};

// ---- the graph ----

std::vector<float> random_values(std::mt19937 & rng) {
    std::vector<float> v(N * 8);
    for (float & x : v) {
        x = (float) (int) (rng() % 17) * 0.125f - 1.0f;
    }
    return v;
}

void build(
    const program & p, world & w, std::vector<ggml_tensor *> & t, const std::vector<std::vector<float>> & initial
) {
    ggml_context * ctx = w.ctx.get();
    for (size_t i = 0; i < p.items.size(); ++i) {
        const item & it = p.items[i];
        ggml_tensor * a = it.a >= 0 ? t[it.a] : nullptr;
        ggml_tensor * b = it.b >= 0 ? t[it.b] : nullptr;
        ggml_tensor * r = nullptr;
        switch (it.what) {
        case INPUT:
            r = w.expand(w.input("", N, 8, initial[i]));
            break;
        case CACHE:
            r = w.cache("cache", N, 8);
            ggml_backend_tensor_set(r, initial[i].data(), 0, ggml_nbytes(r));
            break;
        case ADD:
            r = ggml_add(ctx, a, b);
            break;
        case MUL:
            r = ggml_mul(ctx, a, b);
            break;
        case SCALE:
            r = ggml_scale(ctx, a, it.s);
            break;
        case TURN:
            r = ggml_reshape_2d(ctx, ggml_cont(ctx, ggml_transpose(ctx, a)), N, it.rows);
            break;
        case HALF:
        case READ:
            r = ggml_view_2d(ctx, a, N, 4, a->nb[1], it.row * a->nb[1]);
            break;
        case RESHAPE:
            r = ggml_reshape_2d(ctx, ggml_reshape_1d(ctx, a, N * it.rows), N, it.rows);
            break;
        case SCALE_INPLACE:
            r = ggml_scale_inplace(ctx, a, it.s);
            break;
        case ADD_INPLACE:
            r = ggml_add_inplace(ctx, a, b);
            break;
        case WRITE:
            r = ggml_cpy(ctx, a, ggml_view_2d(ctx, b, N, it.rows, b->nb[1], it.row * b->nb[1]));
            break;
        case SET_ROWS: {
            std::vector<int64_t> ids;
            for (int j = it.rows - 1; j >= 0; --j) {
                ids.push_back(it.row + j);
            }
            r = ggml_set_rows(ctx, b, a, w.indices("", ids));
        } break;
        default:
            break;
        }
        if (is_op(it.what)) {
            w.expand(ggml_format_name(r, "t%d", (int) i));
        }
        t.push_back(r);
    }
}

bool same(const std::vector<float> & a, const std::vector<float> & b) {
    for (size_t i = 0; i < a.size(); ++i) {
        if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) { // long products overflow
            return false;
        }
    }
    return a.size() == b.size();
}

void compare(const program & p, const std::vector<ggml_tensor *> & t, const interpreter & want) {
    for (size_t i = 0; i < p.items.size(); ++i) {
        CHECK(p.items[i].what != CACHE || same(world::read(t[i]), *want.mem[i].cells), "cache %d differs", (int) i);
    }
}

struct totals {
    int n_done = 0, n_refused = 0, n_dropped = 0, n_reroots = 0, n_inplace = 0;
};

void run_seed(uint32_t seed, totals & sum) {
    check::begin("seed " + std::to_string(seed));
    const program p = generator().make(seed);
    std::mt19937 rng(seed + 1);
    std::vector<std::vector<float>> initial(p.items.size());
    for (auto & v : initial) {
        v = random_values(rng);
    }

    world w;
    std::vector<ggml_tensor *> t;
    build(p, w, t, initial);

    std::vector<ridgefill_redirect> rs;
    for (const auto & c : p.changes) {
        rs.push_back({t[c.target], ggml_scale(w.ctx.get(), t[c.source], c.s)});
    }
    std::vector<ggml_tensor *> extra;
    if (p.extra_root >= 0) {
        extra.push_back(t[p.extra_root]);
    }

    { // the interpreter agrees with ggml on the graph as it was
        world plain;
        std::vector<ggml_tensor *> u;
        program q = p;
        q.changes.clear();
        build(q, plain, u, initial);
        plain.run();
        interpreter meaning(q);
        meaning.run(initial);
        compare(q, u, meaning);
    }

    const auto before = w.take();
    ridgefill_rewrite_stats stats;
    std::string reason;
    if (!ridgefill_rewrite(w.gf, rs, extra, stats, reason)) {
        sum.n_refused++;
        CHECK(before == w.take(), "refused (%s) but touched", reason.c_str());
        CHECK(
            reason.find("no use of") == 0 || reason.find("in-place op") == 0
                || reason.find("still needed") != std::string::npos
                || reason.find("allocated before") != std::string::npos,
            "found '%s'", reason.c_str()
        );
        return;
    }
    CHECK(ridgefill_rewrite_verify(w.gf, rs, reason), "%s", reason.c_str());

    // nothing is kept without a reader, and the kept nodes are in their old order
    size_t at = 0;
    for (int i = 0; i < w.gf->n_nodes; ++i) {
        const ggml_tensor * n = w.gf->nodes[i];
        bool used = n->view_src && n->view_src->buffer; // a root, or a view that one needs
        for (int j = 0; j < w.gf->n_nodes && !used; ++j) {
            for (const ggml_tensor * s : w.gf->nodes[j]->src) {
                used = used || s == n;
            }
        }
        used = used || (p.extra_root >= 0 && n == t[p.extra_root]);
        CHECK(used, "%s has no reader", n->name);
        bool is_new = false;
        for (const auto & r : rs) {
            is_new = is_new || r.replacement == n;
        }
        if (!is_new) {
            while (at < before.order.size() && before.order[at] != n) {
                at++;
            }
            CHECK(at < before.order.size(), "%s is out of order", n->name);
        }
    }

    const auto once = w.take();
    ridgefill_rewrite_stats again;
    const bool ok = ridgefill_rewrite(w.gf, {}, extra, again, reason);
    CHECK(ok && once == w.take(), "second run is not idle: %s", reason.c_str());

    interpreter want(p);
    want.run(initial);
    w.run();
    compare(p, t, want);
    for (size_t i = 0; i < p.items.size(); ++i) {
        sum.n_inplace += is_inplace(p.items[i].what) && w.has_node(t[i]);
    }
    sum.n_done++;
    sum.n_dropped += stats.n_nodes_before - stats.n_nodes_after;
    sum.n_reroots += stats.n_reroots;
}

} // namespace

int main(int argc, char ** argv) {
    const int n_seeds = argc > 1 ? atoi(argv[1]) : 2000;
    const uint32_t first = argc > 2 ? (uint32_t) atoi(argv[2]) : 1;
    totals sum;
    for (int i = 0; i < n_seeds; ++i) {
        run_seed(first + (uint32_t) i, sum);
    }
    check::begin("totals");
    printf(
        "%d graphs: %d rewritten (%d nodes dropped, %d views re-rooted, %d in-place ops kept), %d refused\n", n_seeds,
        sum.n_done, sum.n_dropped, sum.n_reroots, sum.n_inplace, sum.n_refused
    );
    // the random graphs must exercise what they are for
    CHECK(sum.n_done > n_seeds / 3 && sum.n_refused > n_seeds / 20, "found %d and %d", sum.n_done, sum.n_refused);
    CHECK(sum.n_reroots > sum.n_done / 10 && sum.n_inplace > sum.n_done / 20 && sum.n_dropped > sum.n_done);
    return check::finish();
}
