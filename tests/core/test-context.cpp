// The plan at work in a context: counts and filled intervals, what makes a prompt run exact, failures half way, several
// kinds of rows in one batch, capture, graph reuse. Values are compared with plain contexts.
//
// usage: test-context [model.gguf]    without a model: a random llama of 6 layers

#include "core/bench.h"

#include "ggml-cpp.h"

#include <cstring>

using namespace core;

namespace {

// A context with a projector that answers zeros, for everything that is not about values.
struct fixture {
    const bench & b;
    prompt p;
    steps all;
    llama_context_ptr ctx;
    oracle o;
    setup s;

    static setup make_setup(int n_seq) {
        setup s;
        s.n_seq = (uint32_t) n_seq;
        s.unified = n_seq > 1;
        return s;
    }
    static capture widths(const bench & b) {
        capture c(b.model, b.n_layer / 2, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT);
        std::fill(c.widths.begin(), c.widths.end(), llama_model_n_embd(b.model));
        return c;
    }

    explicit fixture(const bench & b, int n_seq = 1)
        : b(b), all(p.make(b.model)), ctx(make_context(b.model, make_setup(n_seq))), o(b.model, widths(b), 32),
          s(make_setup(n_seq)) {
        o.set_zero(1); // one row of answers for any number of rows
        attach(LLAMA_RIDGEFILL_MODE_SPEED);
    }

    void attach(llama_ridgefill_mode mode) {
        char err[256] = "";
        CHECK(llama_ridgefill_attach(ctx.get(), &o.projector, p.params(mode), err, sizeof(err)), "%s", err);
    }

    llama_ridgefill_plan
    announce(llama_seq_id seq = 0, llama_pos begin = 0, const llama_ridgefill_params * params = nullptr) {
        return llama_ridgefill_prompt(ctx.get(), seq, begin, p.n_prompt(), params);
    }

    llama_ridgefill_counts counts(llama_seq_id seq = 0) const { return llama_ridgefill_get_counts(ctx.get(), seq); }
    llama_ridgefill_interval filled(llama_seq_id seq = 0) const { return llama_ridgefill_filled(ctx.get(), seq); }

    std::vector<float> exact(const steps & what) {
        llama_context_ptr plain = make_context(b.model, s);
        return run(plain.get(), what);
    }
};

void expect(const llama_ridgefill_counts & c, int n_filled, int n_exact, llama_ridgefill_reason reason) {
    CHECK(
        c.n_filled == n_filled && c.n_exact == n_exact && c.reason == reason, "filled %d exact %d reason %s",
        c.n_filled, c.n_exact, llama_ridgefill_reason_name(c.reason)
    );
}

void test_one_decode(const bench & b) {
    check::begin("one batch, many ubatches");
    fixture f(b);
    const steps whole = {joined(f.all)};
    // the plan cuts the batch where the steps were cut by hand
    f.attach(LLAMA_RIDGEFILL_MODE_PLUMB);
    const steps prompt_only(f.all.begin(), f.all.end() - f.p.n_decode);
    const step at_once = joined(prompt_only);
    f.announce();
    const std::vector<float> plumb = run(f.ctx.get(), {at_once});
    equal(f.exact(prompt_only), plumb, "plumb, one decode");
    expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_NONE);

    f.attach(LLAMA_RIDGEFILL_MODE_SPEED);
    f.announce();
    const std::vector<float> by_step = run(f.ctx.get(), prompt_only);
    f.announce();
    const std::vector<float> by_plan = run(f.ctx.get(), {at_once});
    equal(by_step, by_plan, "filled, one decode");
    differs(plumb, by_plan, "and it was filled");
    expect(f.counts(), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
}

void test_announcement(const bench & b) {
    check::begin("not announced");
    fixture f(b);
    equal(f.exact(f.all), run(f.ctx.get(), f.all), "exact");
    expect(f.counts(), 0, 0, LLAMA_RIDGEFILL_REASON_NO_PLAN);
    CHECK(f.filled().begin == f.filled().end);

    check::begin("announced");
    const llama_ridgefill_plan plan = f.announce();
    CHECK(
        plan.reason == LLAMA_RIDGEFILL_REASON_NONE && plan.bulk_begin == f.p.n_head
        && plan.bulk_end == f.p.n_head + f.p.n_bulk
    );
    expect(f.counts(), 0, 0, LLAMA_RIDGEFILL_REASON_NONE);
    run(f.ctx.get(), f.all);
    expect(f.counts(), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);

    check::begin("an announcement lasts for one prompt");
    equal(f.exact(f.all), run(f.ctx.get(), f.all), "exact");
    CHECK(
        f.filled().begin == f.filled().end, "exact rows in the same cells: [%d, %d)", f.filled().begin, f.filled().end
    );

    check::begin("overrides");
    const llama_ridgefill_params off = f.p.params(LLAMA_RIDGEFILL_MODE_OFF);
    CHECK(f.announce(0, 0, &off).reason == LLAMA_RIDGEFILL_REASON_OFF);
    equal(f.exact(f.all), run(f.ctx.get(), f.all), "exact");
    expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_OFF);

    check::begin("too short");
    llama_ridgefill_params some = f.p.params(LLAMA_RIDGEFILL_MODE_SPEED);
    some.n_min_bulk = f.p.n_bulk + 1;
    CHECK(f.announce(0, 0, &some).reason == LLAMA_RIDGEFILL_REASON_SHORT);
    equal(f.exact(f.all), run(f.ctx.get(), f.all), "exact");
    expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_SHORT);

    check::begin("another projector's model, other parameters");
    char err[256] = "";
    some.n_tail = 0;
    CHECK(
        !llama_ridgefill_attach(f.ctx.get(), &f.o.projector, some, err, sizeof(err)) && strstr(err, "tail"), "%s", err
    );

    check::begin("detached");
    CHECK(
        llama_ridgefill_attach(f.ctx.get(), nullptr, f.p.params(LLAMA_RIDGEFILL_MODE_OFF), err, sizeof(err)), "%s", err
    );
    CHECK(f.announce().reason == LLAMA_RIDGEFILL_REASON_NO_PROJECTOR);
    equal(f.exact(f.all), run(f.ctx.get(), f.all), "exact");
    expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_NO_PROJECTOR);
}

void test_continued(const bench & b) {
    check::begin("a prompt that goes on from cached rows");
    fixture f(b);
    f.announce();
    const std::vector<float> whole = run(f.ctx.get(), f.all);
    // rows from the middle of the bulk again: the bulk part that is left, the tail
    const int begin = f.p.n_head + f.p.n_bulk / 2;
    CHECK(llama_memory_seq_rm(llama_get_memory(f.ctx.get()), 0, begin, -1));
    const llama_ridgefill_plan plan = f.announce(0, begin);
    CHECK(plan.bulk_begin == begin && plan.bulk_end == f.p.n_head + f.p.n_bulk);
    std::vector<float> again;
    for (const step & s : f.all) {
        if (s[0].pos >= begin) {
            CHECK(decode(f.ctx.get(), s) == 0);
            append_logits(f.ctx.get(), s, again);
        }
    }
    equal(whole, again, "second half again");
    expect(f.counts(), f.p.n_bulk / 2, f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
    CHECK(
        f.filled().begin == f.p.n_head && f.filled().end == f.p.n_head + f.p.n_bulk, "filled [%d, %d)",
        f.filled().begin, f.filled().end
    );

    check::begin("a jump ends the plan");
    f.announce();
    const steps jump = {f.all[0], f.all[1]};
    run(f.ctx.get(), jump);
    expect(f.counts(), 32, f.p.n_head, LLAMA_RIDGEFILL_REASON_NONE);
    CHECK(llama_memory_seq_rm(llama_get_memory(f.ctx.get()), 0, f.p.n_head, -1));
    CHECK(decode(f.ctx.get(), f.all[1]) == 0); // the same rows again, not announced
    expect(f.counts(), 32, f.p.n_head, LLAMA_RIDGEFILL_REASON_NONE);
    CHECK(f.filled().begin == f.filled().end, "now exact: [%d, %d)", f.filled().begin, f.filled().end);
}

void test_obstacles(const bench & b) {
    fixture f(b);
    const std::vector<float> exact = f.exact(f.all);

    check::begin("embeddings wanted");
    {
        llama_set_embeddings(f.ctx.get(), true);
        f.announce();
        run(f.ctx.get(), f.all);
        expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_OUTPUTS);
        llama_set_embeddings(f.ctx.get(), false);
    }

    check::begin("outputs of bulk rows wanted");
    {
        steps some = f.all;
        int n = 0;
        for (row & r : some[1]) {
            r.output = r.pos % 3 == 0;
            n += r.output;
        }
        f.announce();
        run(f.ctx.get(), some);
        expect(f.counts(), f.p.n_bulk - n, f.p.n_head + f.p.n_tail + n, LLAMA_RIDGEFILL_REASON_NONE);

        for (step & s : some) {
            for (row & r : s) {
                r.output = true;
            }
        }
        f.announce();
        const std::vector<float> all_rows = run(f.ctx.get(), some);
        equal(f.exact(some), all_rows, "every row an output");
        expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_OUTPUTS);
    }

    check::begin("not causal");
    {
        llama_set_causal_attn(f.ctx.get(), false);
        f.announce();
        run(f.ctx.get(), f.all);
        expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_NOT_CAUSAL);
        llama_set_causal_attn(f.ctx.get(), true);
    }

    check::begin("control vector");
    {
        const int n_embd = llama_model_n_embd(b.model);
        std::vector<float> v((size_t) n_embd * (b.n_layer - 1), 0.0f);
        for (size_t i = 0; i < v.size(); ++i) {
            v[i] = 0.05f * (float) (i % 7);
        }
        const auto set = [&](llama_context * ctx, bool on) {
            CHECK(
                llama_set_adapter_cvec(ctx, on ? v.data() : nullptr, on ? v.size() : 0, n_embd, 1, b.n_layer - 1) == 0
            );
        };
        llama_context_ptr plain = make_context(b.model, f.s);
        set(plain.get(), true);
        const std::vector<float> steered = run(plain.get(), f.all);
        differs(exact, steered, "the vector does something");
        set(f.ctx.get(), true);
        f.announce();
        equal(steered, run(f.ctx.get(), f.all), "exact under the vector");
        expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_ADAPTER);
        set(f.ctx.get(), false);
    }

    check::begin("obstacles gone");
    f.announce();
    run(f.ctx.get(), f.all);
    expect(f.counts(), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
    f.attach(LLAMA_RIDGEFILL_MODE_OFF);
    equal(exact, run(f.ctx.get(), f.all), "exact after all of it");
}

// A LoRA file for the tiny model: one matrix of one early layer.
void test_lora(const bench & b) {
    if (!b.tiny) {
        return;
    }
    check::begin("LoRA");
    gguf_context_ptr g{gguf_init_empty()};
    gguf_set_val_str(g.get(), "general.type", "adapter");
    gguf_set_val_str(g.get(), "general.architecture", "llama");
    gguf_set_val_str(g.get(), "adapter.type", "lora");
    gguf_set_val_f32(g.get(), "adapter.lora.alpha", 4.0f);
    ggml_context_ptr c{ggml_init({1 << 20, nullptr, false})};
    for (const char * part : {"lora_a", "lora_b"}) {
        const bool a = strcmp(part, "lora_a") == 0;
        ggml_tensor * t = ggml_new_tensor_2d(c.get(), GGML_TYPE_F32, a ? 128 : 4, a ? 4 : 128);
        ggml_format_name(t, "blk.0.attn_q.weight.%s", part);
        for (int64_t i = 0; i < ggml_nelements(t); ++i) {
            ((float *) t->data)[i] = 0.1f * (float) ((i * 37) % 11 - 5);
        }
        gguf_add_tensor(g.get(), t);
    }
    const std::string path = "test-exact-lora.gguf";
    CHECK(gguf_write_to_file(g.get(), path.c_str(), false));
    llama_adapter_lora_ptr lora{llama_adapter_lora_init(b.model, path.c_str())};
    remove(path.c_str());
    if (!CHECK(lora != nullptr)) {
        return;
    }
    fixture f(b);
    llama_adapter_lora * list[] = {lora.get()};
    llama_context_ptr plain = make_context(b.model, f.s);
    const std::vector<float> bare = run(plain.get(), f.all);
    for (float scale : {0.0f, 1.0f}) {
        llama_set_adapters_lora(plain.get(), list, 1, &scale);
        llama_set_adapters_lora(f.ctx.get(), list, 1, &scale);
        const std::vector<float> want = run(plain.get(), f.all);
        f.announce();
        const std::vector<float> found = run(f.ctx.get(), f.all);
        if (scale == 0.0f) { // loaded but unused: the plain model
            equal(bare, want, "scale 0");
            expect(f.counts(), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
        } else {
            differs(bare, want, "the adapter does something");
            equal(want, found, "exact under the adapter");
            expect(f.counts(), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_ADAPTER);
        }
    }
    llama_set_adapters_lora(f.ctx.get(), nullptr, 0, nullptr);
    llama_set_adapters_lora(plain.get(), nullptr, 0, nullptr);
}

// ---- failures ----

struct abort_at {
    int n_calls = 0;
    int limit = -1;
    static bool call(void * self) {
        abort_at & a = *(abort_at *) self;
        return a.limit >= 0 && ++a.n_calls > a.limit;
    }
};

void test_abort(const bench & b) {
    check::begin("aborted decode");
    fixture f(b);
    f.announce();
    const std::vector<float> want = run(f.ctx.get(), f.all);

    abort_at a;
    llama_set_abort_callback(f.ctx.get(), abort_at::call, &a);
    f.announce();
    llama_memory_clear(llama_get_memory(f.ctx.get()), true);
    llama_ridgefill_set_filled(f.ctx.get(), 0, {0, 0}); // a caller that moves rows moves the interval
    const steps prompt_only(f.all.begin(), f.all.end() - f.p.n_decode);
    const step at_once = joined(prompt_only);
    // Stops somewhere inside the second bulk ubatch, where the device asks the callback: only the CPU does in the
    // middle of a graph. Elsewhere every decode ends, and the counts must say so.
    const bool asked = ggml_backend_dev_type(b.model->dev_layer(b.n_layer - 1)) == GGML_BACKEND_DEVICE_TYPE_CPU;
    std::vector<float> found;
    int n_aborts = 0;
    llama_pos next = 0;
    for (int limit = 5; next < f.p.n_prompt() && limit < 4000; limit = limit * 2) {
        a.n_calls = 0;
        a.limit = limit;
        step rest;
        for (const row & r : at_once) {
            if (r.pos >= next) {
                rest.push_back(r);
            }
        }
        const int rc = decode(f.ctx.get(), rest);
        const llama_pos done = llama_memory_seq_pos_max(llama_get_memory(f.ctx.get()), 0) + 1;
        if (rc == 0) {
            append_logits(f.ctx.get(), rest, found);
        } else {
            CHECK(rc == 2, "llama_decode returned %d", rc);
            n_aborts++;
        }
        const auto c = f.counts();
        CHECK(c.n_filled + c.n_exact == done, "filled %d + exact %d, in memory %d", c.n_filled, c.n_exact, done);
        const int n_filled = std::max(0, std::min(done, f.p.n_head + f.p.n_bulk) - f.p.n_head);
        CHECK(
            c.n_filled == n_filled && f.filled().end - f.filled().begin == n_filled, "filled %d, want %d", c.n_filled,
            n_filled
        );
        next = done;
    }
    a.limit = -1;
    CHECK(n_aborts > 1 || !asked, "%d aborts", n_aborts);
    CHECK(next == f.p.n_prompt(), "%d of %d rows decoded", next, f.p.n_prompt());
    for (size_t i = f.all.size() - f.p.n_decode; i < f.all.size(); ++i) {
        CHECK(decode(f.ctx.get(), f.all[i]) == 0);
        append_logits(f.ctx.get(), f.all[i], found);
    }
    expect(f.counts(), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
    equal(want, found, "resumed");
    llama_set_abort_callback(f.ctx.get(), nullptr, nullptr);
}

void test_no_room(const bench & b) {
    check::begin("a batch that does not fit the cache");
    fixture f(b);
    f.p.n_bulk = 96; // two prompts of 138 rows in 256 cells
    f.all = f.p.make(b.model);
    f.attach(LLAMA_RIDGEFILL_MODE_SPEED);
    f.announce();
    const std::vector<float> want = run(f.ctx.get(), f.all);
    const steps prompt_only(f.all.begin(), f.all.end() - f.p.n_decode);
    const auto before = f.counts();
    step more = joined(prompt_only);
    for (row & r : more) {
        r.pos += f.p.n_prompt() + f.p.n_decode;
        r.bulk = false;
    }
    CHECK(decode(f.ctx.get(), more) == 1, "no room");
    CHECK(f.counts().n_filled == before.n_filled && f.counts().n_exact == before.n_exact);
    CHECK(f.filled().end == f.p.n_head + f.p.n_bulk);

    // a prompt that was announced and failed can be decoded again
    f.announce();
    llama_memory_clear(llama_get_memory(f.ctx.get()), true);
    step wrong = joined(prompt_only);
    wrong[3].token = -1;
    CHECK(decode(f.ctx.get(), wrong) != 0, "a bad token");
    expect(f.counts(), 0, 0, LLAMA_RIDGEFILL_REASON_NONE);
    equal(want, run(f.ctx.get(), f.all), "after the failures");
    expect(f.counts(), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
}

// ---- several kinds of rows at once ----

// Sequence 0 fills, 1 decodes, 2 is in its tail, 3 runs with the fill off; all in one batch, in the order of a server.
void test_mixed(const bench & b, bool unified) {
    check::begin(unified ? "four kinds of rows in one batch, unified" : "four kinds of rows in one batch, split");
    fixture f(b);
    f.s.n_seq = 4;
    f.s.unified = unified;
    f.s.n_batch = 1024;
    f.ctx = make_context(b.model, f.s);
    f.attach(LLAMA_RIDGEFILL_MODE_SPEED);
    const auto mem = llama_get_memory(f.ctx.get());
    const llama_ridgefill_params off = f.p.params(LLAMA_RIDGEFILL_MODE_OFF);
    const int n = f.p.n_prompt();

    std::vector<std::vector<float>> alone(4), mixed(4);
    const auto prompt_rows = [&](int seq, int from, int to) {
        step s;
        for (const step & part : f.p.make(b.model, seq, (uint32_t) seq)) {
            for (row r : part) {
                if (r.pos >= from && r.pos < to) {
                    r.output = r.pos == to - 1 && to >= n;
                    s.push_back(r);
                }
            }
        }
        return s;
    };
    const auto announce = [&](int seq) { f.announce(seq, 0, seq == 3 ? &off : nullptr); };
    // rows decoded before, and the rows of the batch in question
    const int from[] = {0, n, f.p.n_head + f.p.n_bulk, 0};
    const int to[] = {n, n + 1, n, n};

    for (int seq = 0; seq < 4; ++seq) { // alone
        llama_memory_clear(mem, true);
        announce(seq);
        if (from[seq] > 0) {
            CHECK(decode(f.ctx.get(), prompt_rows(seq, 0, from[seq])) == 0);
        }
        const step s = prompt_rows(seq, from[seq], to[seq]);
        CHECK(decode(f.ctx.get(), s) == 0);
        append_logits(f.ctx.get(), s, alone[seq]);
    }
    llama_memory_clear(mem, true);
    step batch;
    for (int seq = 0; seq < 4; ++seq) {
        announce(seq);
        if (from[seq] > 0) {
            CHECK(decode(f.ctx.get(), prompt_rows(seq, 0, from[seq])) == 0);
        }
    }
    for (const int seq : {1, 2, 0, 3}) {
        const step s = prompt_rows(seq, from[seq], to[seq]);
        batch.insert(batch.end(), s.begin(), s.end());
    }
    CHECK(decode(f.ctx.get(), batch) == 0);
    for (size_t i = 0; i < batch.size(); ++i) {
        if (batch[i].output) {
            const float * v = llama_get_logits_ith(f.ctx.get(), (int32_t) i);
            mixed[batch[i].seq].assign(v, v + alone[0].size());
        }
    }
    for (int seq = 0; seq < 4; ++seq) {
        // other ubatch shapes: equal up to rounding, and the same first choice. Quantised products round by the shape
        // of the batch: the exact sequence of Gemma 3 Q4_K moved by 0.067 on a Zen 5
        const double d = difference(alone[seq], mixed[seq]);
        const double limit = b.tiny ? 2e-2 : 0.15;
        CHECK(d < limit, "sequence %d differs by %g", seq, d);
        // the control: another sequence's answer is much farther away
        const double other = difference(alone[seq], mixed[(seq + 1) % 4]);
        CHECK(other > 2 * limit, "sequence %d is only %g from its neighbour: this check has no power", seq, other);
        const auto top = [](const std::vector<float> & v) { return std::max_element(v.begin(), v.end()) - v.begin(); };
        CHECK(top(alone[seq]) == top(mixed[seq]), "sequence %d", seq);
        const bool fills = seq != 3;
        expect(
            f.counts(seq), fills ? f.p.n_bulk : 0, fills ? f.p.n_head + f.p.n_tail : n,
            fills ? LLAMA_RIDGEFILL_REASON_NONE : LLAMA_RIDGEFILL_REASON_OFF
        );
        CHECK(f.filled(seq).end - f.filled(seq).begin == (fills ? f.p.n_bulk : 0));
    }
    // had sequence 3 been filled, it would show
    llama_memory_clear(mem, true);
    f.announce(3);
    const step s = prompt_rows(3, 0, n);
    std::vector<float> filled3;
    CHECK(decode(f.ctx.get(), s) == 0);
    append_logits(f.ctx.get(), s, filled3);
    CHECK(difference(alone[3], filled3) > 2e-2, "the tolerance has power: %g", difference(alone[3], filled3));
}

void test_capture_order(const bench & b) {
    for (const bool unified : {true, false}) {
        check::begin(unified ? "captured rows in batch order, unified" : "captured rows in batch order, split");
        setup s;
        s.n_seq = 2;
        s.unified = unified;
        llama_context_ptr ctx = make_context(b.model, s);
        // the same rows grouped and interleaved
        step grouped, mixed;
        for (int seq = 0; seq < 2; ++seq) {
            for (int pos = 0; pos < 16; ++pos) {
                grouped.push_back({some_token(b.model, (uint32_t) (pos + 100 * seq)), pos, seq});
            }
        }
        for (int pos = 0; pos < 16; ++pos) {
            mixed.push_back(grouped[pos]);
            mixed.push_back(grouped[16 + pos]);
        }
        capture a(b.model, b.n_layer / 2, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT), m = a;
        mixed.back().output = grouped.back().output = true;
        CHECK(a.take(ctx.get(), {grouped}).empty() && m.take(ctx.get(), {mixed}).empty());
        for (size_t k = 0; k < a.layers.size(); ++k) {
            const size_t width = (size_t) a.widths[k];
            std::vector<float> sorted;
            for (int seq = 0; seq < 2; ++seq) {
                for (int pos = 0; pos < 16; ++pos) {
                    const float * v = m.rows[0][k].data() + (size_t) (2 * pos + seq) * width;
                    sorted.insert(sorted.end(), v, v + width);
                }
            }
            const double d = difference(a.rows[0][k], sorted);
            CHECK(d < 1e-3, "layer %d differs by %g", a.layers[k], d);
        }
    }

    check::begin("captured rows over ubatches with and without outputs");
    llama_context_ptr ctx = make_context(b.model, setup());
    prompt p;
    const steps all = p.make(b.model);
    capture parts(b.model, b.n_layer / 2, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT), whole = parts;
    const steps prompt_only(all.begin(), all.end() - p.n_decode);
    CHECK(parts.take(ctx.get(), prompt_only).empty());
    CHECK(whole.take(ctx.get(), {joined(prompt_only)}).empty());
    for (size_t k = 0; k < parts.layers.size(); ++k) {
        std::vector<float> sum;
        for (const auto & step_rows : parts.rows) {
            sum.insert(sum.end(), step_rows[k].begin(), step_rows[k].end());
        }
        CHECK(
            difference(sum, whole.rows[0][k]) < 1e-2, "layer %d differs by %g", parts.layers[k],
            difference(sum, whole.rows[0][k])
        );
    }
}

// ---- graph reuse ----

// Fill and exact ubatches of the same shape take turns; a graph must never be reused for the other kind.
void test_reuse(const bench & b) {
    std::vector<std::vector<float>> found;
    std::vector<int> reused;
    for (const char * disable : {"0", "1"}) {
        check::begin(std::string("LLAMA_GRAPH_REUSE_DISABLE=") + disable);
#ifdef _WIN32
        _putenv_s("LLAMA_GRAPH_REUSE_DISABLE", disable);
#else
        setenv("LLAMA_GRAPH_REUSE_DISABLE", disable, 1);
#endif
        fixture f(b, 2);
        f.p.n_bulk = 96;
        const llama_ridgefill_params off = f.p.params(LLAMA_RIDGEFILL_MODE_OFF);
        const steps a = f.p.make(b.model, 0, 0), e = f.p.make(b.model, 1, 1);
        f.announce(0);
        f.announce(1, 0, &off);
        steps turns;
        for (size_t i = 0; i < a.size(); ++i) {
            turns.push_back(a[i]);
            turns.push_back(e[i]);
            if (i == 2) { // and the same kind twice in a row
                std::swap(turns[turns.size() - 1], turns[turns.size() - 2]);
            }
        }
        found.push_back(run(f.ctx.get(), turns));
        reused.push_back(llama_perf_context(f.ctx.get()).n_reused);
        expect(f.counts(0), f.p.n_bulk, f.p.n_head + f.p.n_tail, LLAMA_RIDGEFILL_REASON_NONE);
        expect(f.counts(1), 0, f.p.n_prompt(), LLAMA_RIDGEFILL_REASON_OFF);
    }
#ifdef _WIN32
    _putenv_s("LLAMA_GRAPH_REUSE_DISABLE", "");
#else
    unsetenv("LLAMA_GRAPH_REUSE_DISABLE");
#endif
    equal(found[1], found[0], "with reuse");
    CHECK(reused[0] > 0 && reused[1] == 0, "graphs reused: %d and %d", reused[0], reused[1]);
}

// ---- cost ----

void print_cost(const bench & b) {
    fixture f(b);
    const auto mctx = f.ctx->get_memory()->init_full();
    double ms[2] = {1e9, 1e9}; // the fastest of many: others may use the machine
    for (int i = 0; i < 100; ++i) {
        const bool fill = i % 2;
        f.ctx->ridgefill->reserving = fill ? llama_ridgefill_context::FILL : llama_ridgefill_context::EXACT;
        const int64_t t0 = ggml_time_us();
        f.ctx->graph_reserve(32, 1, 1, mctx.get(), true);
        ms[fill] = std::min(ms[fill], (double) (ggml_time_us() - t0) / 1000.0);
    }
    f.ctx->ridgefill->reserving = llama_ridgefill_context::EXACT;
    printf("graph build: exact %.3f ms, fill %.3f ms; the pass costs %.3f ms\n", ms[0], ms[1], ms[1] - ms[0]);
}

} // namespace

int main(int argc, char ** argv) {
    bench b;
    if (!open_model(b, argc, argv)) {
        return finish(b);
    }
    test_one_decode(b);
    test_announcement(b);
    test_continued(b);
    test_obstacles(b);
    test_lora(b);
    quiet = true;
    test_abort(b);
    test_no_room(b);
    quiet = false;
    test_mixed(b, true);
    test_mixed(b, false);
    test_capture_order(b);
    test_reuse(b);
    print_cost(b);
    return finish(b);
}
