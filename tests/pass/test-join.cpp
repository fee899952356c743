// Two graphs of one model joined, without a model: what is taken from the graph of all rows, what the other computes
// itself, what is refused, and what comes out.

#include "llama-ridgefill-join.h"
#include "llama-ridgefill-rewrite.h"

#include "check.h"
#include "pass/world.h"

#include <algorithm>
#include <unordered_map>

namespace {

constexpr int64_t WIDTH = 4, N_ALL = 5;
const std::vector<int64_t> PLACES = {1, 3};
const std::vector<float> VALUES = {2, -1, 3, 4, 1, 5, -2, 6, 7, 1, 2, 3, -4, 2, 5, 1, 3, 3, 2, -6};

// x -> q (normed) -> packed [rows, then a state]; the cache takes k; out = f(x, rows of packed, the cache)
struct layer {
    ggml_tensor *x, *q, *packed, *rows, *write, *out;
};

struct model {
    world w;
    ggml_context * ctx = w.ctx.get();
    ggml_tensor * cache = w.cache("cache", WIDTH, N_ALL);
    ggml_tensor * weight = w.weight("weight", WIDTH, WIDTH, 0.25f);
    ggml_tensor * gain = w.weight("gain", WIDTH, 1);

    // Only the graph that is expanded writes. twist: the few rows are computed in another way
    layer build(ggml_tensor * x, bool expand, bool twist = false) {
        layer l;
        l.x = x;
        l.q = w.named(ggml_mul(ctx, x, gain), "q");
        ggml_tensor * state = ggml_mul_mat(ctx, weight, weight);
        l.packed = w.named(ggml_concat(ctx, l.q, state, 1), "packed"); // no row per token: WIDTH rows more
        ggml_tensor * write =
            ggml_cpy(ctx, l.packed, ggml_view_2d(ctx, states, WIDTH, l.packed->ne[1], states->nb[1], 0));
        l.write = expand ? w.expand(write) : write;
        l.rows = w.named(ggml_view_2d(ctx, l.packed, WIDTH, x->ne[1], l.packed->nb[1], 0), "rows");
        ggml_tensor * sum = ggml_add(ctx, ggml_sqr(ctx, l.rows), x);
        ggml_tensor * seen = ggml_mul_mat(ctx, cache, sum); // [N_ALL, rows], of a cache that all share
        l.out = w.named(twist ? ggml_sqr(ctx, seen) : ggml_neg(ctx, seen), "out");
        return l;
    }

    ggml_tensor * states = w.cache("states", WIDTH, N_ALL + WIDTH);
    ggml_tensor * all_x = w.input("x", WIDTH, N_ALL, VALUES);
    ggml_tensor * ids = ids_input();

    ggml_tensor * ids_input() {
        ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, (int64_t) PLACES.size());
        ggml_set_name(t, "ids");
        ggml_set_input(t);
        return t;
    }

    ggml_tensor * some_x(bool right = true) {
        std::vector<float> v;
        for (const int64_t r : PLACES) {
            const auto from = VALUES.begin() + r * WIDTH;
            v.insert(v.end(), from, from + WIDTH);
        }
        return w.input("some x", WIDTH, (int64_t) PLACES.size() + (right ? 0 : 1), v);
    }

    ridgefill_join join(const std::vector<ggml_tensor *> & own) {
        return {ctx, w.gf, N_ALL, ids, ridgefill_written_from(w.gf, {}), own};
    }

    // values of t behind a run of the graph and what was expanded since
    std::vector<float> run(ggml_tensor * t) {
        ggml_set_output(w.expand(t));
        ggml_gallocr_ptr alloc{ggml_gallocr_new(ggml_backend_get_default_buffer_type(w.backend.get()))};
        GGML_ASSERT(ggml_gallocr_alloc_graph(alloc.get(), w.gf));
        for (auto & [in, v] : w.inputs) {
            if (in->data) {
                ggml_backend_tensor_set(in, v.data(), 0, ggml_nbytes(in));
            }
        }
        const std::vector<int32_t> places(PLACES.begin(), PLACES.end());
        if (ids->data) {
            ggml_backend_tensor_set(ids, places.data(), 0, ggml_nbytes(ids));
        }
        std::vector<float> c(WIDTH * N_ALL);
        for (size_t i = 0; i < c.size(); ++i) {
            c[i] = 0.5f * (float) i - 3.0f;
        }
        ggml_backend_tensor_set(cache, c.data(), 0, ggml_nbytes(cache));
        GGML_ASSERT(ggml_backend_graph_compute(w.backend.get(), w.gf) == GGML_STATUS_SUCCESS);
        return world::read(t);
    }
};

bool has_source(const ggml_tensor * t, const ggml_tensor * s) {
    return std::find(t->src, t->src + GGML_MAX_SRC, s) != t->src + GGML_MAX_SRC;
}

void test_values() {
    check::begin("values");
    model want;
    const layer whole = want.build(want.all_x, true);
    const std::vector<float> full = want.run(whole.out);

    model m;
    const layer all = m.build(m.all_x, true);
    const layer some = m.build(m.some_x(), false);
    ridgefill_join join = m.join({some.x});
    CHECK(join.take(some.out, all.out), "%s", join.reason().c_str());
    // the scan's operands are computed for all rows: not again, and its rows come through a view of its packed result
    for (const ggml_tensor * t : {some.q, some.packed, some.rows, some.write}) {
        CHECK(!join.needed().count(t), "%s", t->name);
    }
    CHECK(join.needed().count(some.out) && join.needed().count(all.packed));

    const std::vector<float> found = m.run(some.out);
    CHECK(!m.w.has_node(some.q) && !m.w.has_node(some.write), "work that all rows do is done once");
    CHECK(!m.w.has_node(all.out), "and what only few rows need is not done for all");
    for (size_t i = 0; i < PLACES.size(); ++i) {
        for (int64_t c = 0; c < N_ALL; ++c) {
            const float a = full[(size_t) (PLACES[i] * N_ALL + c)], b = found[i * N_ALL + (size_t) c];
            CHECK(a == b, "row %zu column %lld: %g, found %g", i, (long long) c, a, b);
        }
    }
}

void test_shared() {
    check::begin("what does not depend on rows is not copied");
    model m;
    const layer all = m.build(m.all_x, true);
    const layer some = m.build(m.some_x(), false);
    ridgefill_join join = m.join({some.x});
    CHECK(join.take(some.out, all.out));
    ggml_tensor * seen = some.out->src[0];
    CHECK(has_source(seen, m.cache) && !has_source(seen, all.out->src[0]->src[1]));
}

void test_halves() {
    check::begin("other types: F16, I32");
    model m;
    ggml_tensor * mask = ggml_new_tensor_2d(m.ctx, GGML_TYPE_F16, N_ALL, N_ALL);
    ggml_tensor * some_mask = ggml_new_tensor_2d(m.ctx, GGML_TYPE_F16, N_ALL, (int64_t) PLACES.size());
    ggml_tensor * place = ggml_new_tensor_1d(m.ctx, GGML_TYPE_I32, N_ALL);
    ggml_tensor * some_place = ggml_new_tensor_1d(m.ctx, GGML_TYPE_I32, (int64_t) PLACES.size());
    ggml_set_input(mask);
    ggml_set_input(place);
    ggml_tensor * table = m.w.weight("table", N_ALL, N_ALL);
    const auto f = [&](ggml_tensor * mask, ggml_tensor * place) {
        return ggml_add(m.ctx, ggml_get_rows(m.ctx, table, place), mask);
    };
    ggml_tensor * some = f(some_mask, some_place);
    ridgefill_join join(m.ctx, m.w.gf, N_ALL, m.ids, {}, {});
    CHECK(join.take(some, f(mask, place)), "%s", join.reason().c_str());
    CHECK(some->src[1]->type == GGML_TYPE_F16 && ggml_are_same_shape(some->src[1], some_mask));
    const ggml_tensor * ids = some->src[0]->src[1];
    CHECK(ids->type == GGML_TYPE_I32 && ggml_are_same_shape(ids, some_place) && ids != some_place);
}

// A convolution over the rows has no operand with a row per token; its result has.
void test_mixing() {
    check::begin("an op that mixes rows is computed for all of them");
    model m;
    const auto f = [&](ggml_tensor * x, bool expand) {
        ggml_tensor * across = ggml_cont(m.ctx, ggml_transpose(m.ctx, x)); // [rows, WIDTH]
        ggml_tensor * write = ggml_cpy(m.ctx, across, ggml_view_1d(m.ctx, m.states, ggml_nelements(across), 0));
        if (expand) {
            m.w.expand(write);
        }
        ggml_tensor * sums = ggml_cont(m.ctx, ggml_transpose(m.ctx, ggml_cumsum(m.ctx, across))); // of the rows so far
        return ggml_neg(m.ctx, sums);
    };
    ggml_tensor * all = f(m.all_x, true);
    ggml_tensor * x = m.some_x();
    ggml_tensor * some = f(x, false);
    ridgefill_join join = m.join({x});
    CHECK(join.take(some, all), "%s", join.reason().c_str());
    CHECK(join.needed().count(all->src[0]->src[0]) && !join.needed().count(all->src[0]), "no more than must be");
    const std::vector<float> found = m.run(some);
    for (size_t i = 0; i < PLACES.size(); ++i) {
        for (int64_t c = 0; c < WIDTH; ++c) {
            float want = 0.0f;
            for (int64_t r = 0; r <= PLACES[i]; ++r) {
                want -= VALUES[(size_t) (r * WIDTH + c)];
            }
            CHECK(
                found[i * WIDTH + (size_t) c] == want, "row %zu: %g, found %g", i, want, found[i * WIDTH + (size_t) c]
            );
        }
    }
}

void test_blank() {
    check::begin("a tensor without values has its own shape");
    model m;
    ggml_tensor * some_blank = ggml_new_tensor_2d(m.ctx, GGML_TYPE_F32, WIDTH, (int64_t) PLACES.size());
    ggml_tensor * some = ggml_fill(m.ctx, some_blank, 1.0f);
    ggml_tensor * all = ggml_fill(m.ctx, ggml_new_tensor_2d(m.ctx, GGML_TYPE_F32, WIDTH, N_ALL), 1.0f);
    ridgefill_join join(m.ctx, m.w.gf, N_ALL, m.ids, {}, {});
    CHECK(join.take(some, all) && some->src[0] == some_blank, "%s", join.reason().c_str());
}

void refused(const char * name, ridgefill_join & join, ggml_tensor * some, ggml_tensor * all, const char * why) {
    CHECK(!join.take(some, all), "%s", name);
    CHECK(join.reason().find(why) != std::string::npos, "%s: found '%s'", name, join.reason().c_str());
}

void test_refused() {
    check::begin("refused");
    {
        model m;
        const layer all = m.build(m.all_x, true);
        const layer some = m.build(m.some_x(), false, true);
        ridgefill_join join = m.join({some.x});
        refused("other op", join, some.out, all.out, "out is computed in another way");
    }
    {
        model m;
        ggml_tensor * x = m.some_x();
        ggml_tensor * some = m.w.named(ggml_scale(m.ctx, x, (float) PLACES.size()), "mean");
        ridgefill_join join = m.join({x});
        refused(
            "a number of rows", join, some, ggml_scale(m.ctx, m.all_x, (float) N_ALL), "mean is computed in another"
        );
    }
    {
        model m;
        const layer all = m.build(m.all_x, true);
        const layer some = m.build(m.some_x(false), false); // as many rows as there are places, plus one
        ridgefill_join join = m.join({some.x});
        refused("other rows", join, some.out, all.out, "no row per token");
    }
    {
        model m;
        const layer all = m.build(m.all_x, true);
        const layer some = m.build(m.some_x(), false);
        ridgefill_join join = m.join({some.x});
        refused("kept", join, some.q, all.q, "q is computed for all rows");
    }
    {
        model m;
        const layer all = m.build(m.all_x, true);
        m.w.expand(ggml_scale_inplace(m.ctx, all.packed, 2.0f));
        const layer some = m.build(m.some_x(), false);
        ridgefill_join join = m.join({some.x});
        refused("changed meanwhile", join, ggml_sqr(m.ctx, some.rows), ggml_sqr(m.ctx, all.rows), "is overwritten");
    }
    {
        model m;
        const auto f = [&](ggml_tensor * x) { return ggml_scale_inplace(m.ctx, ggml_mul(m.ctx, x, m.gain), 2.0f); };
        ggml_tensor * all = f(m.all_x);
        m.w.expand(ggml_cpy(m.ctx, all->src[0], ggml_view_2d(m.ctx, m.states, WIDTH, N_ALL, m.states->nb[1], 0)));
        ggml_tensor * x = m.some_x();
        ggml_tensor * some = f(x);
        ridgefill_join join = m.join({x});
        refused("in place", join, some, all, "overwrites what all rows use");
    }
}

} // namespace

int main() {
    test_values();
    test_shared();
    test_halves();
    test_mixing();
    test_blank();
    test_refused();
    return check::finish();
}
