// The correction of recurrent states in a context: added once behind the bulk, taken off before the next bulk part,
// absent at alpha 0, carried by the sequence's marks. Held against the same runs with the states edited by hand between
// steps, so every comparison is bit for bit.

#include "core/harness.h"
#include "core/tiny.h"

#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <random>

using namespace core;

namespace {

constexpr int SPLIT = 3, N_EMBD = 128;

struct bench {
    llama_model_ptr model = make_tiny_hybrid();
    capture widths{model.get(), SPLIT, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT};
    oracle filled; // one made-up answer per layer for every filled row
    ridgefill_corrections constants;
    prompt p;

    bench() : filled(model.get(), prepare(widths), 32) {
        filled.resize(1);
        std::mt19937 rng(5);
        std::normal_distribution<float> dist;
        for (ggml_tensor * t : filled.bias) {
            std::vector<float> v((size_t) ggml_nelements(t));
            for (float & x : v) {
                x = dist(rng);
            }
            ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
        }
        for (int il = SPLIT + 1; il < (int) model->hparams.n_layer(); ++il) {
            if (model->hparams.is_recr((uint32_t) il)) {
                std::vector<float> & c = constants[il];
                c.resize(model->hparams.n_embd_s());
                for (float & x : c) {
                    x = 0.05f * dist(rng);
                }
            }
        }
    }

    static const capture & prepare(capture & c) {
        std::fill(c.widths.begin(), c.widths.end(), N_EMBD);
        return c;
    }
};

// Two turns of one conversation: 16 exact, 64 filled, 24 exact rows and 2 decode steps; then 64 filled and 24 exact
// rows.
struct conversation {
    llama_seq_id seq;
    uint32_t salt = 0;
    steps first, second;
    int n_first = 0, n_all = 0;

    explicit conversation(const bench & b, llama_seq_id seq = 0, uint32_t salt = 0)
        : seq(seq), salt(salt), first(b.p.make(b.model.get(), seq, salt)) {
        n_first = b.p.n_prompt() + b.p.n_decode;
        n_all = n_first + b.p.n_bulk + b.p.n_tail;
        for (int pos = n_first; pos < n_all;) {
            const bool bulk = pos < n_first + b.p.n_bulk;
            const int end = bulk ? std::min(pos + b.p.n_ubatch, n_first + b.p.n_bulk) : n_all;
            step s;
            for (; pos < end; ++pos) {
                s.push_back(
                    {some_token(b.model.get(), (uint32_t) pos + salt * 7919u), pos, seq, pos >= n_all - b.p.n_out, bulk}
                );
            }
            second.push_back(s);
        }
    }
};

struct arm {
    const bench & b;
    llama_context_ptr ctx;

    explicit arm(bench & b, float alpha, bool states = true, uint32_t n_seq = 1) : b(b) {
        setup s;
        s.n_seq = n_seq;
        s.unified = n_seq > 1;
        ctx = make_context(b.model.get(), s);
        b.filled.projector.states = b.constants;
        if (!states) {
            CHECK(llama_ridgefill_set_alpha(ctx.get(), 0.0f));
        } else {
            CHECK(llama_ridgefill_set_alpha(ctx.get(), alpha));
        }
        char err[256] = "";
        CHECK(
            llama_ridgefill_attach(
                ctx.get(), &b.filled.projector, b.p.params(LLAMA_RIDGEFILL_MODE_SPEED), err, sizeof(err)
            ),
            "%s", err
        );
    }

    std::vector<float> decode_all(const steps & all) {
        std::vector<float> out;
        for (const step & s : all) {
            CHECK(decode(ctx.get(), s) == 0);
            append_logits(ctx.get(), s, out);
        }
        return out;
    }

    std::vector<float> turn(const conversation & c, int which) {
        llama_ridgefill_prompt(
            ctx.get(), c.seq, which == 1 ? 0 : c.n_first, which == 1 ? b.p.n_prompt() : c.n_all, nullptr
        );
        return decode_all(which == 1 ? c.first : c.second);
    }

    llama_memory_recurrent & recurrent() const {
        return *static_cast<llama_memory_hybrid *>(llama_get_memory(ctx.get()))->get_mem_recr();
    }

    float * state(llama_seq_id seq, int il) const {
        llama_memory_recurrent & m = recurrent();
        return (float *) ((char *) m.s_l[(size_t) il]->data + (size_t) m.cells[(size_t) seq].tail * m.s_l[(size_t) il]->nb[1]);
    }

    void edit(llama_seq_id seq, float scale) {
        for (const auto & [il, c] : b.constants) {
            float * s = state(seq, il);
            for (size_t i = 0; i < c.size(); ++i) {
                s[i] += scale * c[i];
            }
        }
    }

    // the turns with the states edited by hand, where the context does nothing
    std::vector<float> turn_by_hand(const conversation & c, int which, float alpha, bool undo = true) {
        llama_ridgefill_prompt(
            ctx.get(), c.seq, which == 1 ? 0 : c.n_first, which == 1 ? b.p.n_prompt() : c.n_all, nullptr
        );
        std::vector<float> out;
        bool was_bulk = false;
        if (which == 2 && undo) {
            edit(c.seq, -alpha);
        }
        for (const step & s : which == 1 ? c.first : c.second) {
            const bool bulk = n_bulk_rows(s) > 0;
            if (was_bulk && !bulk) {
                edit(c.seq, alpha);
            }
            was_bulk = bulk;
            CHECK(decode(ctx.get(), s) == 0);
            append_logits(ctx.get(), s, out);
        }
        return out;
    }
};

void equal(const std::vector<float> & want, const std::vector<float> & found, const char * what) {
    const double d = difference(want, found);
    CHECK(d == 0.0, "%s: %g", what, d);
}

void test_one_prompt(bench & b) {
    check::begin("one prompt");
    const conversation c(b);
    arm plain(b, 0.0f), one(b, 1.0f), half(b, 0.5f), by_hand(b, 0.0f), by_half(b, 0.0f);
    const std::vector<float> none = plain.turn(c, 1);
    const std::vector<float> found = one.turn(c, 1);
    equal(by_hand.turn_by_hand(c, 1, 1.0f), found, "alpha 1");
    equal(by_half.turn_by_hand(c, 1, 0.5f), half.turn(c, 1), "alpha 0.5");
    CHECK(difference(none, found) > 1e-4, "the correction must change something: %g", difference(none, found));
    const llama_ridgefill_counts n = llama_ridgefill_get_counts(one.ctx.get(), 0);
    CHECK(n.n_filled == b.p.n_bulk && n.n_exact == b.p.n_head + b.p.n_tail);

    check::begin("one batch, many ubatches");
    {
        const steps prompt_only(c.first.begin(), c.first.end() - b.p.n_decode);
        arm at_once(b, 1.0f), in_steps(b, 1.0f);
        for (arm * a : {&at_once, &in_steps}) {
            llama_ridgefill_prompt(a->ctx.get(), 0, 0, b.p.n_prompt(), nullptr);
        }
        equal(in_steps.decode_all(prompt_only), at_once.decode_all({joined(prompt_only)}), "logits");
    }

    check::begin("alpha 0 is no correction, bit for bit");
    {
        arm zero(b, 0.0f);
        b.filled.projector.states.clear();
        char err[256] = "";
        arm without(b, 0.0f);
        b.filled.projector.states.clear();
        CHECK(llama_ridgefill_attach(
            without.ctx.get(), &b.filled.projector, b.p.params(LLAMA_RIDGEFILL_MODE_SPEED), err, sizeof(err)
        ));
        const std::vector<float> bare = without.turn(c, 1);
        b.filled.projector.states = b.constants;
        equal(bare, zero.turn(c, 1), "logits");
        for (const auto & [il, unused] : b.constants) {
            CHECK(memcmp(without.state(0, il), zero.state(0, il), unused.size() * sizeof(float)) == 0, "layer %d", il);
        }
    }

    check::begin("plumb and exact rows have none");
    arm plumb(b, 1.0f);
    llama_ridgefill_params params = b.p.params(LLAMA_RIDGEFILL_MODE_PLUMB);
    llama_ridgefill_prompt(plumb.ctx.get(), 0, 0, b.p.n_prompt(), &params);
    const std::vector<float> plumbed = plumb.decode_all(c.first);
    llama_context_ptr stock = make_context(b.model.get(), {});
    equal(run(stock.get(), c.first), plumbed, "plumb");
}

void test_two_turns(bench & b) {
    check::begin("two turns");
    const conversation c(b);
    arm one(b, 1.0f), by_hand(b, 0.0f), kept(b, 0.0f);
    equal(by_hand.turn_by_hand(c, 1, 1.0f), one.turn(c, 1), "first");
    const std::vector<float> second = one.turn(c, 2);
    equal(by_hand.turn_by_hand(c, 2, 1.0f), second, "second");
    kept.turn_by_hand(c, 1, 1.0f);
    CHECK(
        difference(kept.turn_by_hand(c, 2, 1.0f, false), second) > 0.0, "it must be taken off before the second bulk"
    );
    llama_ridgefill_interval parts[4];
    CHECK(llama_ridgefill_parts(one.ctx.get(), 0, parts, 4) == 2);
    CHECK(parts[0].begin == 16 && parts[0].end == 80 && parts[1].begin == 106 && parts[1].end == 170);
}

void test_interrupted(bench & b) {
    check::begin("a bulk that ended early");
    // the caller stops inside the bulk and goes on exactly: the state is corrected where the filled rows end
    const conversation c(b);
    arm one(b, 1.0f), by_hand(b, 0.0f);
    std::vector<float> logits[2];
    arm * arms[2] = {&one, &by_hand};
    for (int i = 0; i < 2; ++i) {
        llama_ridgefill_prompt(arms[i]->ctx.get(), 0, 0, b.p.n_prompt(), nullptr);
        arms[i]->decode_all({c.first[0], c.first[1]}); // the head, half of the bulk
        if (i == 1) {
            by_hand.edit(0, 1.0f);
        }
        llama_ridgefill_params off = b.p.params(LLAMA_RIDGEFILL_MODE_OFF);
        llama_ridgefill_prompt(arms[i]->ctx.get(), 0, 48, b.p.n_prompt(), &off);
        logits[i] = arms[i]->decode_all(steps(c.first.begin() + 2, c.first.end()));
    }
    equal(logits[1], logits[0], "logits");
}

void test_saved(bench & b) {
    check::begin("saved and restored with the sequence");
    const conversation c(b);
    arm one(b, 1.0f);
    one.turn(c, 1);
    const auto save = [](llama_context * ctx, llama_seq_id seq) {
        std::vector<uint8_t> data(llama_state_seq_get_size(ctx, seq));
        llama_state_seq_get_data(ctx, data.data(), data.size(), seq);
        return data;
    };
    const std::vector<uint8_t> data = save(one.ctx.get(), 0);
    llama_ridgefill_interval parts[4];
    const size_t n_parts = llama_ridgefill_parts(one.ctx.get(), 0, parts, 4);
    const std::vector<float> second = one.turn(c, 2);

    for (const bool by_parts : {true, false}) {
        arm other(b, 1.0f);
        CHECK(llama_state_seq_set_data(other.ctx.get(), data.data(), data.size(), 0) > 0);
        const auto mark = [&] {
            if (by_parts) {
                llama_ridgefill_set_parts(other.ctx.get(), 0, parts, n_parts);
            } else {
                llama_ridgefill_set_filled(other.ctx.get(), 0, {16, 80});
            }
        };
        mark();
        equal(second, other.turn(c, 2), by_parts ? "parts" : "interval");
        CHECK(llama_state_seq_set_data(other.ctx.get(), data.data(), data.size(), 0) > 0);
        mark();
        equal(second, other.turn(c, 2), "restored over its own future");
    }
    arm lost(b, 1.0f);
    llama_state_seq_set_data(lost.ctx.get(), data.data(), data.size(), 0);
    CHECK(difference(second, lost.turn(c, 2)) > 0.0, "without marks it is not taken off");

    check::begin("a checkpoint between the turns, restored after the second");
    llama_state_seq_set_data(one.ctx.get(), data.data(), data.size(), 0);
    equal(second, one.turn(c, 2), "again");

    check::begin("a checkpoint inside the bulk");
    arm early(b, 1.0f);
    llama_ridgefill_prompt(early.ctx.get(), 0, 0, b.p.n_prompt(), nullptr);
    early.decode_all({c.first[0], c.first[1]});
    const std::vector<uint8_t> inside = save(early.ctx.get(), 0);
    early.decode_all(steps(c.first.begin() + 2, c.first.end()));
    llama_state_seq_set_data(early.ctx.get(), inside.data(), inside.size(), 0);
    llama_ridgefill_prompt(early.ctx.get(), 0, 48, b.p.n_prompt(), nullptr);
    arm straight(b, 1.0f);
    equal(straight.turn(c, 1), early.decode_all(steps(c.first.begin() + 2, c.first.end())), "logits");

    check::begin("another prompt in the same sequence");
    llama_memory_seq_rm(llama_get_memory(one.ctx.get()), 0, -1, -1);
    llama_ridgefill_params off = b.p.params(LLAMA_RIDGEFILL_MODE_OFF);
    llama_ridgefill_prompt(one.ctx.get(), 0, 0, b.p.n_prompt(), &off);
    llama_context_ptr stock = make_context(b.model.get(), {});
    equal(run(stock.get(), c.first), one.decode_all(c.first), "exact");
    CHECK(llama_ridgefill_parts(one.ctx.get(), 0, nullptr, 0) == 0);
}

void test_copied(bench & b) {
    check::begin("a copied sequence shares its state until it is changed");
    const conversation c(b, 0);
    conversation child(b, 1);
    arm one(b, 1.0f, true, 2), alone(b, 1.0f, true, 2);
    one.turn(c, 1);
    alone.turn(c, 1);
    llama_memory_seq_cp(llama_get_memory(one.ctx.get()), 0, 1, -1, -1);
    llama_ridgefill_interval parts[4];
    llama_ridgefill_set_parts(one.ctx.get(), 1, parts, llama_ridgefill_parts(one.ctx.get(), 0, parts, 4));
    CHECK(one.recurrent().cells[0].tail == one.recurrent().cells[1].tail, "shared");
    const std::vector<float> of_child = one.turn(child, 2);
    const std::vector<float> of_parent = one.turn(c, 2);
    const std::vector<float> want = alone.turn(c, 2);
    equal(want, of_child, "the child, which goes on first");
    equal(want, of_parent, "the parent");
}

void test_rules(bench & b) {
    check::begin("allowed values");
    llama_context_ptr ctx = make_context(b.model.get(), {});
    CHECK(llama_ridgefill_alpha(ctx.get()) == 1.0f);
    for (const float bad : {-0.01f, 1.01f, NAN, INFINITY}) {
        CHECK(!llama_ridgefill_set_alpha(ctx.get(), bad) && llama_ridgefill_alpha(ctx.get()) == 1.0f);
    }
    CHECK(llama_ridgefill_set_alpha(ctx.get(), 0.25f) && llama_ridgefill_alpha(ctx.get()) == 0.25f);

    check::begin("states can be read");
    const conversation c(b);
    arm one(b, 1.0f);
    std::vector<float> state(b.model->hparams.n_embd_s());
    CHECK(llama_ridgefill_state(one.ctx.get(), 0, 4, nullptr, 0) == 0, "empty sequence");
    one.turn(c, 1);
    CHECK(llama_ridgefill_state(one.ctx.get(), 0, 4, state.data(), 1) == state.size(), "too small: not written");
    CHECK(state[0] == 0.0f);
    for (const int il : {0, 4, 5}) {
        CHECK(llama_ridgefill_state(one.ctx.get(), 0, il, state.data(), state.size()) == state.size());
        CHECK(memcmp(state.data(), one.state(0, il), state.size() * sizeof(float)) == 0);
    }
    for (const int il : {-1, 3, 7, 8, 100}) {
        CHECK(llama_ridgefill_state(one.ctx.get(), 0, il, state.data(), state.size()) == 0, "layer %d", il);
    }
    for (const llama_seq_id seq : {-1, 1, 77}) {
        CHECK(llama_ridgefill_state(one.ctx.get(), seq, 4, state.data(), state.size()) == 0, "sequence %d", seq);
    }

    check::begin("the bulk ends at a multiple of the tile");
    b.filled.projector.tile = 64;
    arm tiled(b, 1.0f);
    for (int n = 100; n < 300; n += 7) {
        const llama_ridgefill_plan p = llama_ridgefill_plan_for(tiled.ctx.get(), 0, n, nullptr);
        const int end = (n - b.p.n_tail) / 64 * 64;
        CHECK(
            end > b.p.n_head ? p.bulk_end == end : p.reason == LLAMA_RIDGEFILL_REASON_SHORT, "%d rows: %d", n,
            p.bulk_end
        );
    }
    b.filled.projector.tile = 1;
}

} // namespace

int main() {
    init_with_warnings();
    bench b;
    if (!CHECK(b.model != nullptr)) {
        return check::finish();
    }
    test_one_prompt(b);
    test_two_turns(b);
    test_interrupted(b);
    test_saved(b);
    test_copied(b);
    test_rules(b);
    return check::finish();
}
