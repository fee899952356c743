// The graph rewrite on small graphs, no model: what it drops, what it keeps, what it refuses, and what the result
// computes.

#include "llama-ridgefill-rewrite.h"

#include "check.h"
#include "pass/world.h"

#include <algorithm>
#include <functional>

using redirects = std::vector<ridgefill_redirect>;
using roots = std::vector<ggml_tensor *>;

namespace {

struct result {
    bool ok = false;
    ridgefill_rewrite_stats stats;
    std::string reason;
};

result rewrite(world & w, const redirects & rs, const roots & extra = {}) {
    result r;
    r.ok = ridgefill_rewrite(w.gf, rs, extra, r.stats, r.reason);
    return r;
}

// x -> a -> b -> c -> cache, and a head that no root needs
struct chain {
    world w;
    ggml_context * ctx = w.ctx.get();
    ggml_tensor * cache = w.cache("cache", 4, 2);
    ggml_tensor * x = w.ramp("x", 4, 2);
    ggml_tensor * weight = w.weight("weight", 4, 2);
    ggml_tensor * head_w = w.weight("head_w", 4, 3);
    ggml_tensor * a = w.named(ggml_mul(ctx, x, weight), "a");
    ggml_tensor * b = w.named(ggml_add(ctx, a, x), "b");
    ggml_tensor * c = w.named(ggml_scale(ctx, b, 2.0f), "c");
    ggml_tensor * write = w.store(c, cache);
    ggml_tensor * head = w.expand(w.named(ggml_mul_mat(ctx, head_w, c), "head"));

    // what replaces b
    ggml_tensor * y(float s = 3.0f) { return w.named(ggml_scale(ctx, x, s), "y"); }
};

void test_node_delta() {
    check::begin("node delta");
    chain k;
    ggml_tensor * y = k.y();
    CHECK(k.w.gf->n_nodes == 6, "found %d", k.w.gf->n_nodes); // a b c view write head
    CHECK(k.w.has_leaf(k.head_w) && k.w.has_leaf(k.weight));

    const redirects rs = {{k.b, y}};
    std::string why;
    CHECK(!ridgefill_rewrite_verify(k.w.gf, rs, why), "the target is used before the rewrite");

    const result r = rewrite(k.w, rs);
    CHECK(r.ok, "%s", r.reason.c_str());
    const std::vector<std::string> want = {"y", "c", "cache (view)", "cache (view) (copy of c)"};
    const std::vector<std::string> have = k.w.names();
    CHECK(have == want, "found %zu nodes, first %s", have.size(), have.empty() ? "none" : have[0].c_str());
    CHECK(
        r.stats.n_nodes_before == 6 && r.stats.n_nodes_after == 4, "found %d -> %d", r.stats.n_nodes_before,
        r.stats.n_nodes_after
    );
    CHECK(
        r.stats.n_roots == 1 && r.stats.n_uses == 1 && r.stats.n_reroots == 0, "found %d %d %d", r.stats.n_roots,
        r.stats.n_uses, r.stats.n_reroots
    );
    CHECK(!k.w.has_leaf(k.head_w) && !k.w.has_leaf(k.weight), "weights that nothing reads are dropped");
    CHECK(k.w.has_leaf(k.x));
    CHECK(ridgefill_rewrite_verify(k.w.gf, rs, why), "%s", why.c_str());

    k.w.run();
    const std::vector<float> v = world::read(k.cache);
    for (size_t i = 0; i < v.size(); ++i) {
        CHECK(v[i] == 6.0f * (float) (i + 1), "[%zu] found %g", i, v[i]);
    }
}

void test_idle() {
    check::begin("second run idle");
    chain k;
    CHECK(rewrite(k.w, {{k.b, k.y()}}).ok);
    const auto before = k.w.take();
    const result r = rewrite(k.w, {});
    CHECK(r.ok && r.stats.n_nodes_before == r.stats.n_nodes_after && r.stats.n_uses == 0);
    CHECK(before == k.w.take());

    chain all; // no redirects on a fresh graph: only what no root needs goes
    const result p = rewrite(all.w, {});
    CHECK(p.ok && p.stats.n_nodes_after == 5 && !all.w.has_node(all.head) && all.w.has_node(all.b));
    all.w.run();
    CHECK(world::read(all.cache)[1] == 2.0f * (2 * 2 + 2), "found %g", world::read(all.cache)[1]);
}

// Each refusal names its tensor and leaves the graph as it was.
void refused(const char * name, chain & k, const redirects & rs, const roots & extra, const char * want) {
    check::begin(std::string("refused: ") + name);
    const auto before = k.w.take();
    const result r = rewrite(k.w, rs, extra);
    CHECK(!r.ok);
    CHECK(r.reason.find(want) != std::string::npos, "found '%s', want '%s'", r.reason.c_str(), want);
    CHECK(before == k.w.take(), "the graph was touched");
    CHECK(rewrite(k.w, {{k.b, k.y()}}).ok, "the legal rewrite still works");
}

void test_refusals() {
    {
        chain k;
        refused("shape", k, {{k.b, ggml_reshape_2d(k.ctx, k.y(), 2, 4)}}, {}, "differs from b");
    }
    {
        chain k;
        refused("type", k, {{k.b, ggml_cast(k.ctx, k.y(), GGML_TYPE_F16)}}, {}, "differs from b");
    }
    {
        chain k;
        refused("no use of the target", k, {{k.head, ggml_dup(k.ctx, k.head)}}, {}, "no use of head");
    }
    {
        chain k;
        ggml_tensor * stranger = k.w.named(ggml_scale(k.ctx, k.x, 5.0f), "stranger");
        refused("target outside the graph", k, {{stranger, k.y()}}, {}, "no use of stranger");
    }
    {
        chain k;
        refused(
            "one of two targets unused", k, {{k.b, k.y()}, {k.head, ggml_dup(k.ctx, k.head)}}, {}, "no use of head"
        );
    }
    {
        chain k;
        refused("target needed by another root", k, {{k.b, k.y()}}, {k.b}, "b is still needed");
    }
    {
        chain k;
        ggml_tensor * view = k.w.named(ggml_view_2d(k.ctx, k.cache, 4, 2, k.cache->nb[1], 0), "old rows");
        k.w.expand(ggml_scale(k.ctx, view, 1.0f));
        refused("target in a cache", k, {{view, k.y()}}, {}, "old rows lies in memory allocated before");
    }
    {
        chain k;
        refused("replacement reads the target", k, {{k.b, ggml_scale(k.ctx, k.b, 2.0f)}}, {}, "depends on");
    }
    {
        chain k; // c comes after b: redirecting b to it would make a loop
        refused("replacement comes after the target", k, {{k.b, ggml_scale(k.ctx, k.c, 2.0f)}}, {}, "depends on");
    }
}

void test_must_go() {
    check::begin("nodes that must go");
    chain k;
    const auto before = k.w.take();
    ridgefill_rewrite_stats stats;
    std::string reason;
    const auto named = [](const char * name) {
        return [name](const ggml_tensor * t) { return std::string(t->name) == name; };
    };
    CHECK(!ridgefill_rewrite(k.w.gf, {{k.b, k.y()}}, {}, stats, reason, named("c")) && reason == "c is still needed");
    CHECK(before == k.w.take());
    CHECK(ridgefill_rewrite(k.w.gf, {{k.b, k.y()}}, {}, stats, reason, named("a")), "%s", reason.c_str());
}

void test_in_place() {
    check::begin("in-place op that would be dropped");
    {
        // m = scale_inplace(x2) changes the memory that c2 reads later; only the head uses m itself
        chain k;
        ggml_tensor * x2 = k.w.named(ggml_scale(k.ctx, k.x, 1.0f), "x2");
        ggml_tensor * m = k.w.expand(k.w.named(ggml_scale_inplace(k.ctx, x2, 10.0f), "m"));
        ggml_tensor * c2 = k.w.named(ggml_add(k.ctx, x2, k.x), "c2");
        ggml_tensor * row = k.w.cache("cache2", 4, 2);
        k.w.store(c2, row);
        const auto before = k.w.take();
        const result r = rewrite(k.w, {{k.b, k.y()}});
        CHECK(!r.ok && r.reason.find("in-place op m") != std::string::npos, "found '%s'", r.reason.c_str());
        CHECK(before == k.w.take());
        // as a root of its own it is kept, and the cache sees the changed memory
        CHECK(rewrite(k.w, {{k.b, k.y()}}, {m}).ok);
        k.w.run();
        CHECK(world::read(row)[2] == 33.0f, "found %g", world::read(row)[2]);
    }
    {
        // the same on a target's memory: its readers would miss the change
        chain k;
        ggml_tensor * m = k.w.named(ggml_scale_inplace(k.ctx, k.b, 10.0f), "m");
        k.w.expand(m);
        ggml_tensor * late = k.w.cache("late", 4, 2);
        k.w.store(ggml_add(k.ctx, k.b, k.x), late);
        const result r = rewrite(k.w, {{k.b, k.y()}});
        CHECK(!r.ok && r.reason.find("in-place op m") != std::string::npos, "found '%s'", r.reason.c_str());
    }
    {
        // an in-place op on a redirected tensor writes to the replacement's memory
        check::begin("in-place op on the target");
        world w;
        ggml_context * ctx = w.ctx.get();
        ggml_tensor * cache = w.cache("cache", 4, 2);
        ggml_tensor * x = w.ramp("x", 4, 2);
        ggml_tensor * t = w.named(ggml_scale(ctx, x, 2.0f), "t");
        ggml_tensor * m = w.named(ggml_scale_inplace(ctx, t, 10.0f), "m");
        ggml_tensor * v = w.named(ggml_view_2d(ctx, m, 4, 1, m->nb[1], m->nb[1]), "v"); // a view of the result
        w.store(v, cache);
        ggml_tensor * y = w.named(ggml_scale(ctx, x, 3.0f), "y");
        const result r = rewrite(w, {{t, y}});
        CHECK(r.ok, "%s", r.reason.c_str());
        CHECK(r.stats.n_reroots == 2 && m->view_src == y && v->view_src == y, "found %d", r.stats.n_reroots);
        w.run();
        CHECK(world::read(cache)[0] == 150.0f && world::read(cache)[4] == 0.0f, "found %g", world::read(cache)[0]);
    }
}

void test_shared() {
    check::begin("shared nodes kept once");
    world w;
    ggml_context * ctx = w.ctx.get();
    ggml_tensor * k0 = w.cache("k0", 4, 2);
    ggml_tensor * k1 = w.cache("k1", 4, 2);
    ggml_tensor * x = w.ramp("x", 4, 2);
    ggml_tensor * pos = w.ramp("pos", 4, 2, 0.5f);
    ggml_tensor * rope = w.named(ggml_scale(ctx, pos, 4.0f), "rope"); // both layers use it
    ggml_tensor * a = w.named(ggml_mul(ctx, x, rope), "a");
    w.store(a, k0);
    ggml_tensor * ffn = w.named(ggml_add(ctx, a, x), "ffn");
    ggml_tensor * c = w.named(ggml_mul(ctx, ffn, rope), "c");
    w.store(c, k1);
    ggml_tensor * y = w.named(ggml_scale(ctx, x, 7.0f), "y");
    CHECK(rewrite(w, {{ffn, y}}).ok);
    const auto names = w.names();
    CHECK(std::count(names.begin(), names.end(), "rope") == 1);
    CHECK(!w.has_node(ffn) && w.has_node(a));
    // original order, and the replacement just before its first use
    CHECK(w.index(rope) < w.index(a) && w.index(a) < w.index(y) && w.index(y) + 1 == w.index(c));
    w.run();
    CHECK(
        world::read(k0)[3] == 4 * 8.0f && world::read(k1)[3] == 28 * 8.0f, "found %g %g", world::read(k0)[3],
        world::read(k1)[3]
    );
}

// Uses through views: the target is the result of an op, or itself a view at an offset.
void test_views(bool target_is_view) {
    check::begin(target_is_view ? "views of a view" : "views of an op");
    world w;
    ggml_context * ctx = w.ctx.get();
    ggml_tensor * slices = w.cache("slices", 4, 2);
    ggml_tensor * turned = w.cache("turned", 8, 2);
    ggml_tensor * chained = w.cache("chained", 2, 2);
    ggml_tensor * old = w.cache("old", 4, 4);
    ggml_tensor * x = w.ramp("x", 4, 8);
    ggml_tensor * base = w.named(ggml_scale(ctx, x, 2.0f), "base");
    w.store(ggml_view_2d(ctx, base, 4, 4, base->nb[1], 0), old); // base stays needed where the target is a view of it
    ggml_tensor * t =
        target_is_view
            ? ggml_view_2d(ctx, base, 4, 4, base->nb[1], 4 * base->nb[1])
            : ggml_add(ctx, ggml_view_2d(ctx, base, 4, 4, base->nb[1], 0), ggml_view_2d(ctx, x, 4, 4, x->nb[1], 0));
    w.named(t, "t");
    // rows 2 and 3, by a view
    w.store(w.named(ggml_view_2d(ctx, t, 4, 2, t->nb[1], 2 * t->nb[1]), "v"), slices);
    // all, reshaped and transposed
    ggml_tensor * re = w.named(ggml_reshape_3d(ctx, t, 2, 2, 4), "re");
    w.store(ggml_cont(ctx, ggml_permute(ctx, re, 1, 0, 2, 3)), turned);
    // a view of a view of a view, then in place
    ggml_tensor * flat = ggml_reshape_1d(ctx, t, 16);
    ggml_tensor * half = ggml_view_1d(ctx, flat, 8, 8 * 4);
    ggml_tensor * last = ggml_view_1d(ctx, half, 4, 4 * 4);
    w.store(w.named(ggml_scale_inplace(ctx, last, -1.0f), "in place"), chained);

    ggml_tensor * wide = w.named(ggml_scale(ctx, x, 100.0f), "wide"); // the replacement is a view as well
    ggml_tensor * y = w.named(ggml_view_2d(ctx, wide, 4, 4, wide->nb[1], 2 * wide->nb[1]), "y");
    const redirects rs = {{t, y}};
    const result r = rewrite(w, rs);
    CHECK(r.ok, "%s", r.reason.c_str());
    CHECK(r.stats.n_reroots == 7, "found %d", r.stats.n_reroots);
    std::string why;
    CHECK(ridgefill_rewrite_verify(w.gf, rs, why), "%s", why.c_str());
    CHECK(!w.has_node(t) && w.has_node(base));

    w.run();
    const std::vector<float> & v = w.inputs[x];
    const auto s = world::read(slices), u = world::read(turned), q = world::read(chained), o = world::read(old);
    for (int i = 0; i < 8; ++i) {
        CHECK(s[i] == 100 * v[(2 + 2) * 4 + i], "slices[%d] found %g", i, s[i]);
    }
    for (int j = 0; j < 4; ++j) { // re is [2, 2, 4]; its planes are transposed
        for (int a = 0; a < 2; ++a) {
            for (int b = 0; b < 2; ++b) {
                CHECK(
                    u[j * 4 + a * 2 + b] == 100 * v[2 * 4 + j * 4 + b * 2 + a], "turned found %g", u[j * 4 + a * 2 + b]
                );
            }
        }
    }
    for (int i = 0; i < 4; ++i) {
        CHECK(q[i] == -100 * v[2 * 4 + 12 + i], "chained[%d] found %g", i, q[i]);
    }
    for (int i = 0; i < 16; ++i) {
        CHECK(o[i] == 2 * v[i], "old[%d] found %g", i, o[i]);
    }
}

void test_inputs() {
    check::begin("inputs kept, other leafs dropped");
    chain k;
    ggml_tensor * mask = k.w.ramp("mask", 4, 2);
    k.w.expand(ggml_add(k.ctx, k.head, ggml_view_2d(k.ctx, mask, 3, 2, mask->nb[1], 0)));
    CHECK(k.w.has_leaf(mask));
    CHECK(rewrite(k.w, {{k.b, k.y()}}).ok);
    CHECK(k.w.has_leaf(mask), "an input that nothing reads is still set from outside");
    k.w.run();
    CHECK(mask->data != nullptr, "so it must be allocated");
}

void test_set_rows() {
    check::begin("set_rows and the order of roots");
    world w;
    ggml_context * ctx = w.ctx.get();
    ggml_tensor * cache = w.cache("cache", 4, 4, -1.0f);
    ggml_tensor * x = w.ramp("x", 4, 2);
    ggml_tensor * t = w.named(ggml_scale(ctx, x, 2.0f), "t");
    ggml_tensor * c = w.named(ggml_scale(ctx, t, 5.0f), "c");
    ggml_tensor * first = w.expand(ggml_set_rows(ctx, cache, c, w.indices("ids", {3, 1})));
    ggml_tensor * twice = w.expand(ggml_set_rows(ctx, cache, x, w.indices("ids2", {1, 0}))); // row 1 again
    // reads the cache after both writes
    ggml_tensor * copy = w.cache("copy", 4, 4);
    ggml_tensor * read = w.named(ggml_scale(ctx, cache, 1.0f), "read");
    w.store(read, copy);
    const result r = rewrite(w, {{t, ggml_scale(ctx, x, 3.0f)}});
    CHECK(r.ok && r.stats.n_roots == 3, "found %d roots", r.stats.n_roots);
    CHECK(w.index(first) < w.index(twice) && w.index(twice) < w.index(read));
    w.run();
    const auto v = world::read(cache), u = world::read(copy);
    CHECK(v == u);
    CHECK(
        v[12] == 15.0f && v[4] == 1.0f && v[0] == 5.0f && v[8] == -1.0f, "found %g %g %g %g", v[12], v[4], v[0], v[8]
    );
}

void test_values() {
    check::begin("same value, same caches");
    chain plain, same, other;
    CHECK(rewrite(same.w, {{same.b, ggml_add(same.ctx, ggml_mul(same.ctx, same.x, same.weight), same.x)}}).ok);
    CHECK(rewrite(other.w, {{other.b, other.y(0.0f)}}).ok);
    plain.w.run();
    same.w.run();
    other.w.run();
    CHECK(world::read(plain.cache) == world::read(same.cache));
    CHECK(world::read(plain.cache) != world::read(other.cache), "another value must be seen");
}

void test_extra_roots() {
    check::begin("extra roots stay");
    chain k;
    CHECK(rewrite(k.w, {{k.b, k.y()}}, {k.a}).ok);
    CHECK(k.w.has_node(k.a) && !k.w.has_node(k.b) && k.w.has_leaf(k.weight));

    chain leaf; // an input as a root: nothing to keep but itself
    CHECK(rewrite(leaf.w, {{leaf.b, leaf.y()}}, {leaf.x}).ok);
    CHECK(leaf.w.gf->n_nodes == 4, "found %d", leaf.w.gf->n_nodes);
}

void test_several() {
    check::begin("several targets, one alive at a time");
    world w;
    ggml_context * ctx = w.ctx.get();
    ggml_tensor * x = w.ramp("x", 4, 2);
    redirects rs;
    std::vector<ggml_tensor *> caches, uses;
    ggml_tensor * h = x;
    for (int il = 0; il < 5; ++il) {
        caches.push_back(w.cache("k", 4, 2));
        uses.push_back(ggml_scale(ctx, h, 0.5f));
        w.store(uses.back(), caches.back());
        h = w.named(ggml_add(ctx, ggml_mul(ctx, h, x), uses.back()), "h");
        if (il < 4) {
            rs.push_back({h, ggml_scale(ctx, x, 1.0f + (float) il)});
        }
    }
    w.expand(h);
    const result r = rewrite(w, rs);
    CHECK(r.ok && r.stats.n_roots == 5, "%s", r.reason.c_str());
    CHECK(r.stats.n_uses == 4 * 2, "found %d", r.stats.n_uses); // its own layer's use and the residual
    CHECK(r.stats.n_nodes_after == 5 * 3 + 4, "found %d", r.stats.n_nodes_after);
    for (size_t i = 0; i < rs.size(); ++i) {
        CHECK(w.index(rs[i].replacement) + 1 == w.index(uses[i + 1]));
    }
    w.run();
    for (int il = 1; il < 5; ++il) {
        CHECK(world::read(caches[il])[5] == 3.0f * (float) il, "layer %d found %g", il, world::read(caches[il])[5]);
    }
}

void test_verify() {
    check::begin("verifier");
    std::string why;
    {
        chain k;
        CHECK(ridgefill_rewrite_verify(k.w.gf, {}, why));
        std::swap(k.w.gf->nodes[0], k.w.gf->nodes[1]); // b before a
        CHECK(
            !ridgefill_rewrite_verify(k.w.gf, {}, why) && why.find("b comes before its source a") == 0, "%s",
            why.c_str()
        );
    }
    {
        chain k;
        CHECK(
            !ridgefill_rewrite_verify(k.w.gf, {{k.b, k.y()}}, why)
                && why.find("reads the redirected b") != std::string::npos,
            "%s", why.c_str()
        );
    }
    {
        chain k;
        ggml_tensor * lost = k.w.named(ggml_scale(k.ctx, k.x, 1.0f), "lost");
        ggml_tensor * view = k.w.named(ggml_view_1d(k.ctx, k.a, 4, 0), "view");
        k.w.expand(view);
        CHECK(ridgefill_rewrite_verify(k.w.gf, {}, why), "%s", why.c_str());
        view->view_src = lost;
        CHECK(
            !ridgefill_rewrite_verify(k.w.gf, {}, why) && why.find("views lost") != std::string::npos, "%s", why.c_str()
        );
    }
}

} // namespace

int main() {
    test_node_delta();
    test_idle();
    test_refusals();
    test_must_go();
    test_in_place();
    test_shared();
    test_views(false);
    test_views(true);
    test_inputs();
    test_set_rows();
    test_values();
    test_extra_roots();
    test_several();
    test_verify();
    return check::finish();
}
