// Exactness of the core on a real or a tiny random model: plumb and off equal exact, and the oracle (true layer inputs
// in place of the maps) equals exact too, whatever the cache looks like. A control with zeros must differ.
//
// usage: test-exact [model.gguf]      without a model: a random llama of 6 layers

#include "core/bench.h"

using namespace core;

namespace {

void check_counts(const filled_run & r, int seq, const prompt & p, llama_ridgefill_mode mode, bool fills) {
    const llama_ridgefill_counts c = r.counts.at(seq);
    CHECK(c.mode == mode, "mode %s", llama_ridgefill_mode_name(c.mode));
    CHECK(c.n_filled == (fills ? p.n_bulk : 0), "filled %d", c.n_filled);
    CHECK(c.n_filled + c.n_exact == p.n_prompt(), "filled %d + exact %d of %d", c.n_filled, c.n_exact, p.n_prompt());
}

// One setup, one split: exact = capturing = off = plumb = oracle, and zeros differ.
void test_oracle(const bench & b, const setup & s, int split, llama_ridgefill_target target) {
    const bool layer_input = target == LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
    check::begin(s.name + ", split " + std::to_string(split) + (layer_input ? "" : ", block input"));
    prompt p;
    p.n_ubatch /= (int) s.n_seq;
    std::vector<steps> seqs;
    for (uint32_t i = 0; i < s.n_seq; ++i) {
        seqs.push_back(p.make(b.model, (llama_seq_id) i, i));
    }
    const steps all = side_by_side(seqs);

    llama_context_ptr ctx = make_context(b.model, s);
    if (!CHECK(ctx != nullptr)) {
        return;
    }
    const std::vector<float> exact = run(ctx.get(), all);
    equal(exact, run(ctx.get(), all), "exact twice");

    capture c(b.model, split, target);
    const std::string why = c.take(ctx.get(), all);
    if (!CHECK(why.empty(), "capture: %s", why.c_str())) {
        return;
    }
    equal(exact, c.logits, "while capturing");

    // a context of its own: what was in the cache before cannot help
    llama_context_ptr fresh = make_context(b.model, s);
    oracle o(b.model, c, (int) s.n_ubatch);
    const hook answer = [&](size_t i) {
        if (n_bulk_rows(all[i]) > 0) {
            o.set(c.rows[i]);
        }
    };
    const hook zeros = [&](size_t i) {
        if (n_bulk_rows(all[i]) > 0) {
            o.set_zero((int) all[i].size());
        }
    };

    const filled_run filled = run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_SPEED, all, (int) s.n_seq, answer);
    if (!CHECK(filled.why.empty(), "attach: %s", filled.why.c_str())) {
        return;
    }
    equal(exact, filled.logits, "oracle");
    for (uint32_t i = 0; i < s.n_seq; ++i) {
        check_counts(filled, (int) i, p, LLAMA_RIDGEFILL_MODE_SPEED, true);
        const llama_ridgefill_interval iv = llama_ridgefill_filled(fresh.get(), (llama_seq_id) i);
        CHECK(iv.begin == p.n_head && iv.end == p.n_head + p.n_bulk, "filled [%d, %d)", iv.begin, iv.end);
    }
    CHECK(filled.applied && filled.n_nodes_after < filled.n_nodes_before);
    const bool has_late = split + 1 < b.n_layer;
    printf(
        "  %-40s oracle %g, %d -> %d nodes", check::get().name.c_str(), difference(exact, filled.logits),
        filled.n_nodes_before, filled.n_nodes_after
    );

    const filled_run zero = run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_SPEED, all, (int) s.n_seq, zeros);
    printf(", zeros %g\n", difference(exact, zero.logits));
    if (has_late) {
        differs(exact, zero.logits, "zeros");
    } else {
        equal(exact, zero.logits, "no late layer, nothing to answer");
    }

    const filled_run plumb = run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_PLUMB, all, (int) s.n_seq, zeros);
    equal(exact, plumb.logits, "plumb");
    check_counts(plumb, 0, p, LLAMA_RIDGEFILL_MODE_PLUMB, false);
    CHECK(plumb.applied && plumb.n_nodes_after >= filled.n_nodes_after);

    const filled_run off = run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_OFF, all, (int) s.n_seq, zeros);
    equal(exact, off.logits, "off");
    check_counts(off, 0, p, LLAMA_RIDGEFILL_MODE_OFF, false);
    CHECK(off.counts.at(0).reason == LLAMA_RIDGEFILL_REASON_OFF);
}

void test_setups(const bench & b) {
    const int mid = b.n_layer / 3;
    const auto INPUT = LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
    const auto BLOCK = LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT;

    setup s;
    s.name = "default";
    for (const int split : {1, 2 * b.n_layer / 3, b.n_layer - 1}) {
        test_oracle(b, s, split, INPUT);
    }
    test_oracle(b, s, mid, INPUT);
    test_oracle(b, s, mid, BLOCK);

    s.name = "flash attention off";
    s.flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    test_oracle(b, s, mid, INPUT);

    s.name = "q8_0 cache";
    s.flash = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    s.kv = GGML_TYPE_Q8_0;
    test_oracle(b, s, mid, INPUT);

    s = setup();
    s.name = "two sequences, unified";
    s.n_seq = 2;
    s.unified = true;
    test_oracle(b, s, mid, INPUT);
    s.name = "two sequences, split";
    s.unified = false;
    test_oracle(b, s, mid, INPUT);

    s = setup();
    s.name = "sliding window ring";
    s.swa_full = false;
    test_oracle(b, s, mid, INPUT);
}

} // namespace

int main(int argc, char ** argv) {
    bench b;
    if (open_model(b, argc, argv)) {
        test_setups(b);
    }
    return finish(b);
}
