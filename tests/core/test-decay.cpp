// How much of a recurrent state's memory came from filled rows: the graph's sums against the recurrence row by row, on
// gates that the model computed, and what the correction makes of it.

#include "core/harness.h"
#include "core/tiny.h"

#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <map>
#include <random>

using namespace core;

namespace {

constexpr int SPLIT = 3, N_EMBD = 128;
constexpr float SHARE = 0.5f;

// g of every row that a layer saw, in order: [row][head]
using gates = std::map<int32_t, std::vector<float>>;

bool note_gate(ggml_tensor * t, bool ask, void * data) {
    int il = 0;
    if (sscanf(t->name, "gate-%d", &il) != 1 || t->op != GGML_OP_MUL) {
        return false;
    }
    if (!ask) {
        std::vector<float> & g = (*(gates *) data)[il];
        const size_t n = g.size();
        g.resize(n + (size_t) ggml_nelements(t));
        ggml_backend_tensor_get(t, g.data() + n, 0, ggml_nbytes(t));
    }
    return true;
}

struct fixture {
    llama_model_ptr model = make_tiny_hybrid();
    gates seen;
    prompt p;
    capture widths{model.get(), SPLIT, LLAMA_RIDGEFILL_TARGET_LAYER_INPUT};
    oracle o{model.get(), all_of(widths), 32};
    llama_context_ptr ctx;

    static const capture & all_of(capture & c) {
        std::fill(c.widths.begin(), c.widths.end(), N_EMBD);
        return c;
    }

    fixture() {
        p.n_bulk = 112; // 128 positions, less the head: a bulk ends at a multiple of 64
        o.set_zero(1);
        std::mt19937 rng(5);
        std::normal_distribution<float> dist;
        for (int il = SPLIT + 1; il < (int) model->hparams.n_layer(); ++il) {
            if (model->hparams.is_recr((uint32_t) il)) {
                std::vector<float> & c = o.projector.states[il];
                c.resize(model->hparams.n_embd_s());
                std::generate(c.begin(), c.end(), [&] { return 0.05f * dist(rng); });
            }
        }
        setup s;
        s.eval = note_gate;
        s.eval_data = &seen;
        ctx = make_context(model.get(), s);
        char err[256] = "";
        CHECK(
            llama_ridgefill_attach(ctx.get(), &o.projector, p.params(LLAMA_RIDGEFILL_MODE_SPEED), err, sizeof(err)),
            "%s", err
        );
    }

    std::vector<float> run_share(const steps & what, float share) {
        llama_ridgefill_params params = p.params(LLAMA_RIDGEFILL_MODE_QUALITY);
        params.select = LLAMA_RIDGEFILL_SELECT_RANDOM;
        params.share = share;
        seen.clear();
        llama_ridgefill_set_filled(ctx.get(), 0, {});
        llama_ridgefill_prompt(ctx.get(), 0, 0, p.n_prompt(), &params);
        return run(ctx.get(), what);
    }

    std::vector<bool> filled(float share) const {
        std::vector<llama_pos> pos;
        for (int i = p.n_head; i < p.n_head + p.n_bulk; ++i) {
            pos.push_back(i);
        }
        const std::vector<llama_token> token(pos.size());
        std::vector<bool> res(pos.size(), true);
        for (const uint32_t r : ridgefill_select(LLAMA_RIDGEFILL_SELECT_RANDOM, share, pos, token, {}, nullptr)) {
            res[r] = false;
        }
        return res;
    }

    const ridgefill_marks & marks() const { return *ridgefill_state_of(ctx.get()).marks(0); }
    size_t n_heads() const { return model->hparams.ssm_dt_rank; }
};

void test_shares(fixture & f) {
    check::begin("shares");
    f.run_share(f.p.make(f.model.get()), SHARE);
    const auto share = f.marks().share();
    if (!CHECK(share && share->heads.size() == f.o.projector.states.size() && f.marks().applied() == 1.0f)) {
        return;
    }
    const std::vector<bool> filled = f.filled(SHARE);
    float low = 1.0f, high = 0.0f;
    for (const auto & [il, found] : share->heads) {
        const std::vector<float> & g = f.seen[il];
        const size_t n = f.n_heads();
        if (!CHECK(found.size() == n && g.size() >= n * (size_t) (f.p.n_head + f.p.n_bulk), "layer %d", il)) {
            continue;
        }
        for (size_t h = 0; h < n; ++h) {
            double all = 0.0, part = 0.0;
            for (size_t r = 0; r < filled.size(); ++r) {
                const double kept = std::exp((double) g[((size_t) f.p.n_head + r) * n + h]);
                all = kept * all + 1.0;
                part = kept * part + (filled[r] ? 1.0 : 0.0);
            }
            // F32 sums of at most 64 rows
            CHECK(std::abs(found[h] - part / all) < 1e-5, "layer %d head %zu: %g %g", il, h, found[h], part / all);
            low = std::min(low, found[h]);
            high = std::max(high, found[h]);
        }
    }
    CHECK(low < high, "heads forget at different rates: %g", low);
}

void test_bounds(fixture & f) {
    check::begin("no row filled, all rows filled");
    const steps all = f.p.make(f.model.get());
    f.run_share(all, 1.0f);
    auto share = f.marks().share();
    for (const auto & [il, heads] : share->heads) {
        CHECK(std::count(heads.begin(), heads.end(), 0.0f) == (int) heads.size(), "layer %d", il);
    }
    f.run_share(all, 0.0f);
    share = f.marks().share();
    for (const auto & [il, heads] : share->heads) {
        CHECK(std::count(heads.begin(), heads.end(), 1.0f) == (int) heads.size(), "layer %d", il);
    }
}

// However the tail arrives, the correction comes between the bulk and it.
void test_cut_tail(fixture & f) {
    check::begin("a tail in several batches");
    const float share = 0.9f;
    CHECK(!f.filled(share).back(), "this test wants a share that selects the last bulk row");
    steps all;
    for (const step & s : f.p.make(f.model.get())) {
        for (size_t i = 0; i < s.size(); i += 8) {
            const bool bulk = s.front().bulk;
            all.push_back(bulk ? s : step(s.begin() + (int) i, s.begin() + (int) std::min(i + 8, s.size())));
            if (bulk) {
                break;
            }
        }
    }
    f.run_share(f.p.make(f.model.get()), share);
    const auto whole = f.marks().share();
    f.run_share(all, share);
    CHECK(f.marks().applied() == 1.0f && f.marks().share() && f.marks().share()->heads == whole->heads);
}

void test_add(fixture & f) {
    check::begin("the correction by head");
    f.run_share(f.p.make(f.model.get()), SHARE);
    llama_memory_recurrent & m = *static_cast<llama_memory_hybrid *>(llama_get_memory(f.ctx.get()))->get_mem_recr();
    for (const auto & [il, c] : f.o.projector.states) {
        ridgefill_shares share;
        const size_t n = f.n_heads(), size = c.size() / n;
        for (size_t h = 0; h < n; ++h) {
            share.heads[il].push_back((float) h / (float) n); // the first head: nothing
        }
        std::vector<float> before(c.size()), after(c.size());
        llama_ridgefill_state(f.ctx.get(), 0, il, before.data(), before.size());
        CHECK(ridgefill_correction_add(m, 0, {{il, c}}, 0.5f, &share));
        llama_ridgefill_state(f.ctx.get(), 0, il, after.data(), after.size());
        int n_bad = 0;
        for (size_t i = 0; i < c.size(); ++i) {
            n_bad += after[i] != before[i] + 0.5f * share.heads[il][i / size] * c[i];
        }
        CHECK(n_bad == 0, "layer %d: %d", il, n_bad);
        CHECK(memcmp(before.data(), after.data(), size * sizeof(float)) == 0);
    }
}

} // namespace

int main() {
    init_with_warnings();
    fixture f;
    test_shares(f);
    test_bounds(f);
    test_cut_tail(f);
    test_add(f);
    return check::finish();
}
