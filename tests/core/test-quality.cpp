// Quality mode in a context. Its parts must add up to what one pass would do: every bulk row selected equals exact,
// none equals speed, however the prompt is cut into batches.
//
// usage: test-quality [model.gguf]    without a model: a random llama of 6 layers

#include "core/bench.h"

#include "ggml-cpp.h"

#include "llama-kv-cache-iswa.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

using namespace core;

namespace {

// Maps that answer zeros: what they fill is so wrong that a row which should have been run again shows.
struct fixture {
    const bench & b;
    prompt p;
    setup s;
    llama_context_ptr ctx;
    oracle o;

    static capture widths(const bench & b) {
        capture c(b.model, b.n_layer / 2, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT);
        std::fill(c.widths.begin(), c.widths.end(), llama_model_n_embd(b.model));
        return c;
    }

    explicit fixture(const bench & b, const setup & s = {}, const prompt & p = {})
        : b(b), p(p), s(s), ctx(make_context(b.model, s)), o(b.model, widths(b), 32) {
        o.set_zero(1);
        char err[256] = "";
        CHECK(
            llama_ridgefill_attach(ctx.get(), &o.projector, p.params(LLAMA_RIDGEFILL_MODE_SPEED), err, sizeof(err)),
            "%s", err
        );
    }

    llama_ridgefill_params quality(llama_ridgefill_select select, float share) const {
        llama_ridgefill_params params = p.params(LLAMA_RIDGEFILL_MODE_QUALITY);
        params.select = select;
        params.share = share;
        return params;
    }

    std::vector<float> run_mode(const steps & what, const llama_ridgefill_params & params, llama_seq_id seq = 0) {
        llama_ridgefill_set_filled(ctx.get(), seq, {});
        llama_ridgefill_prompt(ctx.get(), seq, 0, p.n_prompt(), &params);
        return run(ctx.get(), what);
    }

    llama_ridgefill_counts counts(llama_seq_id seq = 0) const { return llama_ridgefill_get_counts(ctx.get(), seq); }
};

// the steps' rows, cut anew: head | bulk | tail in batches of at most n_batch rows | decode steps
steps recut(const fixture & f, int n_tail_batch) {
    steps res;
    for (const step & s : f.p.make(f.b.model)) {
        const int begin = s.front().pos;
        if (begin < f.p.n_head + f.p.n_bulk || begin >= f.p.n_prompt()) {
            res.push_back(s);
            continue;
        }
        for (size_t i = 0; i < s.size(); i += (size_t) n_tail_batch) {
            res.emplace_back(
                s.begin() + (ptrdiff_t) i, s.begin() + (ptrdiff_t) std::min(s.size(), i + (size_t) n_tail_batch)
            );
        }
    }
    return res;
}

// only the prompt's last row and the decode steps ask for an output, as a server does
steps last_only(steps all, int n_prompt) {
    for (step & s : all) {
        for (row & r : s) {
            r.output = r.pos >= n_prompt - 1;
        }
    }
    return all;
}

void test_bounds(const bench & b, const setup & s, const prompt & p = {}) {
    check::begin("none equals speed, all equals exact: " + s.name);
    fixture f(b, s, p);
    const steps all = f.p.make(b.model);
    const auto speed = f.run_mode(all, f.p.params(LLAMA_RIDGEFILL_MODE_SPEED));
    const auto plumb = f.run_mode(all, f.p.params(LLAMA_RIDGEFILL_MODE_PLUMB));
    CHECK(difference(plumb, speed) > 1e-2, "the zero maps change nothing: this test has no power");

    const auto none = f.run_mode(all, f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.0f));
    equal(speed, none, "share 0");
    CHECK(f.counts().n_filled == f.p.n_bulk && f.counts().n_selected == 0);

    const auto everything = f.run_mode(all, f.quality(LLAMA_RIDGEFILL_SELECT_ALL, 0.0f));
    equal(plumb, everything, "all");
    CHECK(f.counts().n_filled == 0 && f.counts().n_selected == f.p.n_bulk && f.counts().n_exact == f.p.n_prompt());

    const auto whole = f.run_mode(all, f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 1.0f));
    equal(plumb, whole, "attention, share 1");
}

// What ran only its first half has no late caches: nothing may run in full behind it.
void test_abandoned(const bench & b, bool hybrid) {
    check::begin(hybrid ? "abandoned, hybrid" : "abandoned");
    prompt p;
    if (hybrid) {
        p.n_bulk = 4 * 64 - p.n_head;
    }
    setup s;
    s.n_ctx = 512;
    fixture f(b, s, p);
    const steps all = last_only(recut(f, 8), p.n_prompt());
    const auto q = f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.5f);
    const auto want = f.run_mode(all, q);
    const auto mem = llama_get_memory(f.ctx.get());

    llama_memory_clear(mem, true);
    llama_ridgefill_set_filled(f.ctx.get(), 0, {});
    llama_ridgefill_prompt(f.ctx.get(), 0, 0, p.n_prompt(), &q);
    llama_pos end = 0;
    for (const step & part : all) { // up to the first part of the tail
        CHECK(decode(f.ctx.get(), part) == 0);
        end = part.back().pos + 1;
        if (end > p.n_head + p.n_bulk) {
            break;
        }
    }
    CHECK(end < p.n_prompt());
    llama_ridgefill_prompt(f.ctx.get(), 0, end, end + 1, nullptr); // another prompt behind it
    CHECK(decode(f.ctx.get(), {{some_token(b.model, 1), end, 0, true, false}}) == -1);
    CHECK(llama_memory_seq_pos_max(mem, 0) == end - 1, "a refused batch changes nothing");
    // from the beginning again: as if nothing had been
    equal(want, f.run_mode(all, q), "run again");
    equal(
        f.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_OFF)), f.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_OFF)), "off"
    );
}

// Late states depend on all rows before them: filled and selected rows pass them together, in order.
bench bench_of(llama_model_ptr model) {
    bench b;
    b.owner = std::move(model);
    b.model = b.owner.get();
    b.n_layer = llama_model_n_layer(b.model);
    return b;
}

prompt hybrid_prompt() {
    prompt p;
    p.n_bulk = 4 * 64 - p.n_head; // a bulk ends at a multiple of 64 here
    return p;
}

setup hybrid_setup() {
    setup s;
    s.name = "hybrid";
    s.n_ctx = 512;
    return s;
}

// Ubatches of one row hold either a filled or a selected one, each with a graph of its own: no two graphs are joined.
void test_mixed(const bench & b, setup s, const prompt & p) {
    check::begin("mixed ubatches: " + s.name);
    const steps all = last_only(p.make(b.model), p.n_prompt());
    s.n_ubatch = 1;
    fixture one(b, s, p);
    s.n_ubatch = 48;
    fixture many(b, s, p);
    const auto q = one.quality(LLAMA_RIDGEFILL_SELECT_RANDOM, 0.3f);
    const auto want = one.run_mode(all, q);
    const auto found = many.run_mode(all, q);
    const auto fewer = many.run_mode(all, many.quality(LLAMA_RIDGEFILL_SELECT_RANDOM, 0.25f));
    // rounding of other batch shapes, as between stock's own runs of these two shapes; 13 of 240 rows change more
    const double stock = difference(
        one.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_OFF)), many.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_OFF))
    );
    CHECK(difference(want, found) < 3 * stock, "found %g, stock %g", difference(want, found), stock);
    CHECK(difference(want, fewer) > 3 * difference(want, found), "found %g", difference(want, fewer));
    CHECK(many.counts().n_selected == one.counts().n_selected && many.counts().n_filled == one.counts().n_filled);
}

void test_hybrid(const bench & b) {
    const prompt p = hybrid_prompt();
    const setup s = hybrid_setup();
    test_bounds(b, s, p);
    {
        prompt longer = p; // more cells are in use as the late part goes on
        longer.n_bulk += 8 * 64;
        setup wide = s;
        wide.name = "hybrid, long";
        wide.n_ctx = 1024;
        test_bounds(b, wide, longer);
        test_mixed(b, wide, longer);
    }

    check::begin("hybrid, a share");
    fixture f(b, s, p);
    const steps all = p.make(b.model);
    const auto plumb = f.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_PLUMB));
    const auto speed = f.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_SPEED));
    const auto some = f.run_mode(all, f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.5f));
    const auto c = f.counts();
    // whole runs of 64: 112 to 128 of the 240 rows, the first run has only 48
    CHECK(
        c.n_selected >= 112 && c.n_selected <= 128 && c.n_filled == p.n_bulk - c.n_selected, "selected %d filled %d",
        c.n_selected, c.n_filled
    );
    CHECK(difference(plumb, some) > 0 && difference(speed, some) > 0);

    f.o.projector.score.assign(256, -INFINITY);
    const auto none = f.run_mode(all, f.quality(LLAMA_RIDGEFILL_SELECT_CLASS, 1.0f));
    equal(speed, none, "score_none");

    quiet = true;
    test_abandoned(b, true);
    quiet = false;
}

std::vector<setup> hybrid_setups() {
    std::vector<setup> res;
    for (const bool flash : {true, false}) {
        setup s;
        s.name = flash ? "flash" : "no flash";
        s.flash = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        s.n_ctx = 512;
        res.push_back(s);
    }
    res.push_back(res[0]);
    res.back().name = "flash, q8_0";
    res.back().kv = GGML_TYPE_Q8_0;
    for (const bool unified : {true, false}) {
        res.push_back(res[0]);
        res.back().name = unified ? "3 sequences, unified" : "3 sequences, split";
        res.back().n_seq = 3;
        res.back().unified = unified;
    }
    return res;
}

// The rows that late FFNs were computed for.
struct ffn_rows {
    int split = 0;
    std::map<std::string, int64_t> rows; // by layer

    static bool see(ggml_tensor * t, bool ask, void * data) {
        auto & self = *(ffn_rows *) data;
        const std::string name = t->name;
        const size_t dash = name.find("ffn_out-");
        if (ask && dash == 0 && atoi(name.c_str() + strlen("ffn_out-")) >= self.split) {
            self.rows[name] += t->ne[1];
        }
        return false;
    }
};

void test_work(const bench & b) {
    check::begin("hybrid, late work");
    prompt p = hybrid_prompt();
    p.n_decode = 0;
    setup s = hybrid_setup();
    ffn_rows seen;
    s.eval = ffn_rows::see;
    s.eval_data = &seen;
    fixture f(b, s, p);
    seen.split = b.n_layer / 2;
    const steps all = last_only(p.make(b.model), p.n_prompt());
    for (const float share : {0.0f, 0.1f, 0.5f, 1.0f}) {
        seen.rows.clear();
        f.run_mode(all, f.quality(LLAMA_RIDGEFILL_SELECT_RANDOM, share));
        const int64_t n_exact = f.counts().n_exact;
        CHECK(n_exact == p.n_prompt() - f.counts().n_filled);
        CHECK((int) seen.rows.size() == b.n_layer - seen.split, "found %zu layers", seen.rows.size());
        for (const auto & [name, n] : seen.rows) {
            const bool last = name == "ffn_out-" + std::to_string(b.n_layer - 1);
            CHECK(
                last ? n <= n_exact : n == n_exact, "share %g: %s of %lld rows, %lld are exact", share, name.c_str(),
                (long long) n, (long long) n_exact
            );
        }
    }
}

// Layers with a window keep 256 cells here; the prompt passes through them three times.
void test_window() {
    const bench b = bench_of(make_tiny_window());
    prompt p;
    p.n_bulk = 700;
    for (const bool full : {false, true}) {
        for (const bool unified : {false, true}) { // then ubatches are cut without a view to sequences
            setup s;
            s.name = std::string(full ? "window, all cells" : "window, ring") + (unified ? ", unified" : "");
            s.n_ctx = 1024;
            s.swa_full = full;
            s.unified = unified;
            test_bounds(b, s, p);
            test_mixed(b, s, p);
        }
    }
    check::begin("window, cells and batches");
    setup s;
    s.n_ctx = 1024;
    s.swa_full = false;
    fixture f(b, s, p);
    const steps all = p.make(b.model);
    const auto q = f.quality(LLAMA_RIDGEFILL_SELECT_RANDOM, 0.3f);
    const auto want = f.run_mode(all, q);
    auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(f.ctx->get_memory());
    const auto places = [&] { return iswa->get_swa()->get_cells(0).seq_pos_get(0); };
    const auto behind = places();
    f.run_mode(all, p.params(LLAMA_RIDGEFILL_MODE_OFF));
    CHECK(behind == places(), "the prompt took other cells than an exact one");
    CHECK(behind.size() < (size_t) p.n_prompt(), "the ring holds all %zu rows: this test has no power", behind.size());
    // a tail that comes in two batches
    equal(want, f.run_mode(recut(f, 12), q), "tail in two batches");

    setup two = s;
    two.n_seq = 2;
    fixture shared(b, two, p);
    CHECK(
        llama_ridgefill_plan_for(shared.ctx.get(), 0, p.n_prompt(), &q).reason == LLAMA_RIDGEFILL_REASON_MEMORY,
        "sequences that may take each other's cells"
    );
}

void test_share(const bench & b) {
    check::begin("a share");
    fixture f(b);
    const steps all = f.p.make(b.model);
    const auto plumb = f.run_mode(all, f.p.params(LLAMA_RIDGEFILL_MODE_PLUMB));
    const auto speed = f.run_mode(all, f.p.params(LLAMA_RIDGEFILL_MODE_SPEED));
    for (const auto select :
         {LLAMA_RIDGEFILL_SELECT_ATTENTION, LLAMA_RIDGEFILL_SELECT_SPANS, LLAMA_RIDGEFILL_SELECT_ROWS,
          LLAMA_RIDGEFILL_SELECT_RANDOM}) {
        const auto some = f.run_mode(all, f.quality(select, 0.25f));
        const auto c = f.counts();
        CHECK(
            c.n_selected == f.p.n_bulk / 4 && c.n_filled == f.p.n_bulk - f.p.n_bulk / 4
                && c.n_exact == f.p.n_prompt() - c.n_filled,
            "%s: selected %d filled %d exact %d", llama_ridgefill_select_name(select), c.n_selected, c.n_filled,
            c.n_exact
        );
        CHECK(difference(plumb, some) > 0 && difference(speed, some) > 0, "%s", llama_ridgefill_select_name(select));
    }
}

void test_cuts(const bench & b) {
    check::begin("a tail over several batches");
    setup s;
    s.n_ubatch = 8; // the tail of 24 rows is 3 ubatches however it is cut
    fixture f(b, s);
    const auto q = f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.5f);
    const auto once = f.run_mode(last_only(recut(f, 24), f.p.n_prompt()), q);
    const auto want = f.counts();
    for (const int n : {8, 16}) {
        const auto found = f.run_mode(last_only(recut(f, n), f.p.n_prompt()), q);
        equal(once, found, n == 8 ? "batches of 8" : "batches of 16");
        CHECK(f.counts().n_selected == want.n_selected && f.counts().n_exact == want.n_exact);
    }
    // bulk and tail in one batch
    steps joint = last_only(f.p.make(b.model), f.p.n_prompt());
    const step whole = joined(steps(joint.begin(), joint.end() - f.p.n_decode));
    steps one = {whole};
    one.insert(one.end(), joint.end() - f.p.n_decode, joint.end());
    equal(once, f.run_mode(one, q), "one batch");
}

void test_beside(const bench & b, setup s, const prompt & p, bool unified) {
    check::begin("beside other sequences " + s.name + (unified ? ", unified" : ", split"));
    s.n_seq = 3;
    s.unified = unified;
    s.n_ubatch = 96; // more rows of each sequence than the question has, also where memory is reserved for all three
    fixture f(b, s, p);
    const auto q = f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.5f);
    const int n = f.p.n_prompt(), tail = n - f.p.n_tail;
    const auto mem = llama_get_memory(f.ctx.get());
    const auto rows = [&](int seq, int from, int to) {
        step res;
        for (const step & part : f.p.make(b.model, seq, (uint32_t) seq)) {
            for (row r : part) {
                if (r.pos >= from && r.pos < to) {
                    r.output = r.pos >= n - 1;
                    res.push_back(r);
                }
            }
        }
        return res;
    };
    // 0 and 2 in their tails, 1 decoding
    const int from[] = {tail, n, tail}, to[] = {n, n + 1, n};
    std::map<int, std::vector<float>> alone, mixed;
    const auto begin = [&](int seq) {
        llama_ridgefill_set_filled(f.ctx.get(), seq, {});
        llama_ridgefill_prompt(f.ctx.get(), seq, 0, n, &q);
        CHECK(decode(f.ctx.get(), rows(seq, 0, from[seq])) == 0);
    };
    for (int seq = 0; seq < 3; ++seq) {
        llama_memory_clear(mem, true);
        begin(seq);
        const step last = rows(seq, from[seq], to[seq]);
        CHECK(decode(f.ctx.get(), last) == 0);
        append_logits(f.ctx.get(), last, alone[seq]);
    }
    llama_memory_clear(mem, true);
    step batch;
    for (const int seq : {2, 1, 0}) { // so that recurrent states change places when 0 and 2 run together
        begin(seq);
    }
    for (const int seq : {0, 1, 2}) {
        const step last = rows(seq, from[seq], to[seq]);
        batch.insert(batch.end(), last.begin(), last.end());
    }
    CHECK(decode(f.ctx.get(), batch) == 0);
    for (size_t i = 0; i < batch.size(); ++i) {
        if (batch[i].output) {
            const float * v = llama_get_logits_ith(f.ctx.get(), (int32_t) i);
            mixed[batch[i].seq].assign(v, v + alone[0].size());
        }
    }
    for (int seq = 0; seq < 3; ++seq) {
        // other ubatch shapes: equal up to rounding
        CHECK(
            difference(alone[seq], mixed[seq]) < 2e-2, "sequence %d differs by %g", seq,
            difference(alone[seq], mixed[seq])
        );
        // whole runs of 64 on hybrids
        CHECK(
            std::abs(f.counts(seq).n_selected - f.p.n_bulk / 2) <= (p.n_bulk > 200 ? 32 : 0), "sequence %d selected %d",
            seq, f.counts(seq).n_selected
        );
    }
}

void test_failure(const bench & b) {
    check::begin("an aborted tail leaves the prompt as it was");
    fixture f(b);
    const steps all = last_only(f.p.make(b.model), f.p.n_prompt());
    const auto q = f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.5f);
    const auto want = f.run_mode(all, q);

    llama_memory_clear(llama_get_memory(f.ctx.get()), true);
    llama_ridgefill_set_filled(f.ctx.get(), 0, {});
    llama_ridgefill_prompt(f.ctx.get(), 0, 0, f.p.n_prompt(), &q);
    std::vector<float> found;
    for (const step & s : all) {
        if (s.front().pos == f.p.n_head + f.p.n_bulk) { // the tail: fails in its first half
            llama_set_abort_callback(
                f.ctx.get(), [](void *) { return true; }, nullptr
            );
            CHECK(decode(f.ctx.get(), s) != 0);
            llama_set_abort_callback(f.ctx.get(), nullptr, nullptr);
            CHECK(llama_memory_seq_pos_max(llama_get_memory(f.ctx.get()), 0) == s.front().pos - 1);
        }
        CHECK(decode(f.ctx.get(), s) == 0);
        append_logits(f.ctx.get(), s, found);
    }
    equal(want, found, "after an abort");
}

void test_attach(const bench & b) {
    check::begin("another side file before the tail");
    fixture f(b);
    capture c(b.model, b.n_layer / 2 - 1, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT);
    std::fill(c.widths.begin(), c.widths.end(), llama_model_n_embd(b.model));
    oracle other(b.model, c, 32);
    other.set_zero(1);
    const steps all = last_only(f.p.make(b.model), f.p.n_prompt());
    const auto run_both = [&](const llama_ridgefill_params & params) {
        const auto attach = [&](const oracle & o) {
            CHECK(llama_ridgefill_attach(f.ctx.get(), &o.projector, params, nullptr, 0));
        };
        attach(f.o);
        llama_ridgefill_set_filled(f.ctx.get(), 0, {});
        llama_ridgefill_prompt(f.ctx.get(), 0, 0, f.p.n_prompt(), nullptr);
        return run(f.ctx.get(), all, [&](size_t i) {
            if (all[i].front().pos == f.p.n_head + f.p.n_bulk) {
                attach(other);
            }
        });
    };
    const auto speed = run_both(f.p.params(LLAMA_RIDGEFILL_MODE_SPEED));
    equal(speed, run_both(f.quality(LLAMA_RIDGEFILL_SELECT_ALL, 1.0f)), "the tail runs exactly");
    CHECK(f.counts().n_selected == 0 && f.counts().n_exact == f.p.n_head + f.p.n_tail);
}

void test_declined(const bench & b) {
    check::begin("declined with a reason");
    fixture f(b);
    const auto plan = [&](const llama_ridgefill_params & p) {
        return llama_ridgefill_plan_for(f.ctx.get(), 0, f.p.n_prompt(), &p);
    };
    CHECK(plan(f.quality(LLAMA_RIDGEFILL_SELECT_CLASS, 0.25f)).reason == LLAMA_RIDGEFILL_REASON_NO_TABLE);
    f.o.projector.score.assign(256, 1.0f);
    CHECK(plan(f.quality(LLAMA_RIDGEFILL_SELECT_CLASS, 0.25f)).reason == LLAMA_RIDGEFILL_REASON_NONE);
    // many more rows than any host keeps
    auto q = f.quality(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.25f);
    CHECK(llama_ridgefill_plan_for(f.ctx.get(), 0, 1 << 30, &q).reason == LLAMA_RIDGEFILL_REASON_MEMORY);
}

void test_tables(const bench & b) {
    check::begin("score tables");
    fixture f(b);
    const steps all = f.p.make(b.model);
    const size_t n_vocab = (size_t) llama_vocab_n_tokens(llama_model_get_vocab(b.model));
    const auto q = f.quality(LLAMA_RIDGEFILL_SELECT_CLASS, 1.0f);
    f.o.projector.score.assign(n_vocab, 0.0f); // score_all
    equal(f.run_mode(all, f.p.params(LLAMA_RIDGEFILL_MODE_PLUMB)), f.run_mode(all, q), "score_all, share 1");
    f.o.projector.score.assign(n_vocab, -INFINITY); // score_none
    equal(f.run_mode(all, f.p.params(LLAMA_RIDGEFILL_MODE_SPEED)), f.run_mode(all, q), "score_none");
}

} // namespace

int main(int argc, char ** argv) {
    bench b;
    if (!open_model(b, argc, argv)) {
        return finish(b);
    }
    for (const auto flash : {LLAMA_FLASH_ATTN_TYPE_ENABLED, LLAMA_FLASH_ATTN_TYPE_DISABLED}) {
        for (const ggml_type kv : {GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
            if (flash == LLAMA_FLASH_ATTN_TYPE_DISABLED && kv == GGML_TYPE_Q8_0) {
                continue; // a quantised V cache needs flash attention
            }
            setup s;
            s.name =
                std::string(flash == LLAMA_FLASH_ATTN_TYPE_ENABLED ? "flash" : "no flash") + ", " + ggml_type_name(kv);
            s.flash = flash;
            s.kv = kv;
            test_bounds(b, s);
        }
    }
    if (b.tiny) {
        const bench h = bench_of(make_tiny_hybrid());
        test_hybrid(h);
        test_work(h);
        test_beside(h, hybrid_setup(), hybrid_prompt(), true);
        test_beside(h, hybrid_setup(), hybrid_prompt(), false);
        for (const setup & s : hybrid_setups()) {
            test_mixed(h, s, hybrid_prompt());
        }
        test_window();
    }
    test_share(b);
    test_cuts(b);
    test_beside(b, {}, {}, true);
    test_beside(b, {}, {}, false);
    quiet = true;
    test_failure(b);
    test_abandoned(b, false);
    quiet = false;
    test_attach(b);
    test_declined(b);
    test_tables(b);
    return finish(b);
}
