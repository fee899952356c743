// Quality mode: the context's part of it.

#include "llama-ridgefill-quality.h"

#include "llama-ridgefill-context.h"
#include "llama-ridgefill-projector.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <algorithm>

// Kept rows may take this much host memory per prompt; a longer prompt keeps them as F16, a still longer one runs
// exact.
static constexpr size_t KEEP_BUDGET = 1024ull * 1024 * 1024;

size_t ridgefill_prompt_quality::n_bulk() const {
    size_t n = rows.size(); // the tail is short and comes last
    while (n > 0 && rows.pos_at(n - 1) >= bulk_end) {
        --n;
    }
    return n;
}

ridgefill_shares ridgefill_prompt_quality::filled_shares() const {
    const size_t n = n_bulk();
    return decay.shares(n > 0 ? (float) (n - chosen.size()) / (float) n : 1.0f);
}

void ridgefill_prompt_quality::choose(const std::vector<float> * table, llama_pos block) {
    const size_t n = n_bulk();
    std::vector<llama_pos> pos(n);
    std::vector<llama_token> token(n);
    for (size_t i = 0; i < n; ++i) {
        pos[i] = rows.pos_at(i);
        token[i] = rows.token_at(i);
    }
    chosen.clear();
    for (const uint32_t r : ridgefill_select(select, share, pos, token, scores, table, block)) {
        chosen.push_back(pos[r]);
    }
}

//
// llama_ridgefill_context
//

void llama_ridgefill_context::check_quality(llama_ridgefill_plan & plan, const llama_ridgefill_params & p) const {
    if (plan.mode != LLAMA_RIDGEFILL_MODE_QUALITY || plan.reason != LLAMA_RIDGEFILL_REASON_NONE) {
        return;
    }
    const size_t n_rows = (size_t) (plan.bulk_end - plan.bulk_begin + p.n_tail);
    if (!can_resume || n_rows * ridgefill_rows::bytes_per_row(projector->maps.n_in, true) > KEEP_BUDGET) {
        plan.reason = LLAMA_RIDGEFILL_REASON_MEMORY;
    } else if (p.select == LLAMA_RIDGEFILL_SELECT_CLASS && projector->score.empty()) {
        plan.reason = LLAMA_RIDGEFILL_REASON_NO_TABLE;
    }
    if (plan.reason != LLAMA_RIDGEFILL_REASON_NONE) {
        plan.bulk_begin = plan.bulk_end = 0;
    }
}

std::unique_ptr<ridgefill_prompt_quality> llama_ridgefill_context::start_quality(
    const llama_ridgefill_plan & plan, llama_pos end, const llama_ridgefill_params & p
) const {
    if (plan.mode != LLAMA_RIDGEFILL_MODE_QUALITY || plan.reason != LLAMA_RIDGEFILL_REASON_NONE) {
        return nullptr;
    }
    auto q = std::make_unique<ridgefill_prompt_quality>();
    q->select = p.select;
    q->share = p.share;
    q->bulk_end = plan.bulk_end;
    q->pos_end = end;
    const size_t n_rows = (size_t) (end - plan.bulk_begin);
    const int32_t width = projector->maps.n_in;
    q->rows.start(width, n_rows * ridgefill_rows::bytes_per_row(width, false) > KEEP_BUDGET, n_rows);
    return q;
}

void llama_ridgefill_context::find_caches(llama_memory_i * memory, uint32_t n_seq_max) {
    const auto * hybrid = dynamic_cast<const llama_memory_hybrid *>(memory);
    const auto * hybrid_iswa = dynamic_cast<const llama_memory_hybrid_iswa *>(memory);
    const auto * iswa = hybrid_iswa ? hybrid_iswa->get_mem_attn() : dynamic_cast<const llama_kv_cache_iswa *>(memory);
    const auto * dsa = dynamic_cast<const llama_kv_cache_dsa *>(memory); // the indexer's cells are found alike

    recurrent = hybrid ? hybrid->get_mem_recr() : hybrid_iswa ? hybrid_iswa->get_mem_recr() : nullptr;
    ring = iswa ? iswa->get_swa() : nullptr;
    cache = hybrid ? hybrid->get_mem_attn()
            : iswa ? iswa->get_base()
            : dsa  ? dsa->get_mla()
                   : dynamic_cast<const llama_kv_cache *>(memory);
    if ((recurrent && recurrent->n_rs_seq > 0) // snapshots of the last rows' states would mix both halves
        || (ring && n_seq_max > 1)) {          // another sequence may take cells that rows come back to
        cache = nullptr;
    }
}

ridgefill_prompt_quality * llama_ridgefill_context::quality_of(llama_seq_id seq) {
    const auto it = seqs.find(seq);
    return it == seqs.end() ? nullptr : it->second.quality.get();
}

void llama_ridgefill_context::count_selected(llama_seq_id seq, int32_t n) {
    llama_ridgefill_counts & c = seqs[seq].counts;
    c.n_selected += n;
    c.n_exact += n;
    c.n_filled -= n;
}

void llama_ridgefill_context::source_rows(const llama_ubatch & ubatch, int64_t width, float * out) const {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        seqs.at(ubatch.seq_id[i][0]).quality->rows.get(ubatch.pos[i], out + (int64_t) i * width);
    }
}

void llama_ridgefill_context::query_weights(const llama_ubatch & ubatch, float * out) const {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const ridgefill_prompt_quality & q = *seqs.at(ubatch.seq_id[i][0]).quality;
        float * w = out + (size_t) i * ridgefill_scores::N_QUERIES;
        w[ridgefill_scores::QUESTION] = ubatch.pos[i] >= q.pos_end - RIDGEFILL_N_QUESTION ? 1.0f : 0.0f;
        w[ridgefill_scores::TAIL] = 1.0f;
    }
}

std::vector<int32_t> llama_ridgefill_context::exact_rows(const llama_ubatch & ubatch) const {
    std::vector<int32_t> res;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (seqs.at(ubatch.seq_id[i][0]).quality->is_chosen(ubatch.pos[i])) {
            res.push_back((int32_t) i);
        }
    }
    return res;
}

void llama_ridgefill_context::keep_rows(const llama_ubatch & ubatch) {
    const int64_t width = projector->maps.n_in;
    std::vector<float> data((size_t) (width * ubatch.n_tokens));
    ggml_backend_tensor_get(outcome.source, data.data(), 0, data.size() * sizeof(float));
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const auto it = seqs.find(ubatch.seq_id[i][0]);
        if (it != seqs.end() && it->second.quality) {
            if (ring && i == 0) { // one sequence
                it->second.quality->ring.note(ring->get_cells(it->first), ubatch);
            }
            const llama_token token = ubatch.token ? ubatch.token[i] : LLAMA_TOKEN_NULL;
            it->second.quality->rows.append(ubatch.pos[i], token, data.data() + (int64_t) i * width);
        }
    }
}

struct llama_ridgefill_context::snapshot {
    ridgefill_cursor cursor;
    llama_ridgefill_counts counts;
    ridgefill_marks marks;
    ridgefill_scores scores;
    llama_pos unfinished;
};

std::shared_ptr<llama_ridgefill_context::snapshot> llama_ridgefill_context::save(llama_seq_id seq) const {
    const sequence & s = seqs.at(seq);
    return std::make_shared<snapshot>(snapshot{s.cursor, s.counts, s.marks, s.quality->scores, s.unfinished});
}

void llama_ridgefill_context::restore(llama_seq_id seq, const snapshot & from, llama_pos pos_max) {
    sequence & s = seqs.at(seq);
    s.cursor = from.cursor;
    s.counts = from.counts;
    s.marks = from.marks;
    s.marks.cut(pos_max + 1);
    if (pos_max + 1 < from.cursor.pos_next) { // a second half failed, and took bulk rows with it
        s.cursor.active = false;
        s.quality.reset();
        s.unfinished = -1; // on hybrids nothing is left, elsewhere the tail's rows are gone
        return;
    }
    s.unfinished = from.unfinished;
    s.quality->scores = from.scores;
    s.quality->rows.cut(from.cursor.pos_next);
    s.quality->ring.cut(from.cursor.pos_next);
}

void llama_ridgefill_context::end_quality(llama_seq_id seq) {
    seqs.at(seq).quality.reset();
    seqs.at(seq).unfinished = -1;
}

void llama_ridgefill_context::add_decay(const llama_ubatch & ubatch, ggml_backend_sched_t sched) {
    ridgefill_prompt_quality * q = quality_of(ubatch.seq_id[0][0]);
    if (outcome.decay.empty() || !q || ubatch.pos[0] >= q->bulk_end) {
        return; // the tail's rows are not waited for
    }
    ggml_backend_sched_synchronize(sched);
    std::vector<float> data;
    for (const auto & [il, t] : outcome.decay) {
        data.resize((size_t) ggml_nelements(t));
        ggml_backend_tensor_get(t, data.data(), 0, ggml_nbytes(t));
        q->decay.add(il, data.data(), (size_t) t->ne[0], (size_t) t->ne[1]);
    }
}

void llama_ridgefill_context::add_scores(const llama_ubatch & ubatch) {
    const llama_seq_id seq = ubatch.seq_id[0][0];
    ridgefill_prompt_quality & q = *quality_of(seq);
    const auto & places = cache->get_cells(seq).seq_pos_get(seq);
    const size_t n = q.n_bulk();
    std::vector<uint32_t> cell(n);
    for (size_t r = 0; r < n; ++r) {
        const auto it = places.lower_bound({q.rows.pos_at(r), 0});
        if (it == places.end()) {
            return; // the caller removed bulk rows meanwhile; the second half will find that
        }
        cell[r] = it->second;
    }
    if (q.scores.empty()) {
        q.scores.start(n);
    }
    std::vector<float> data;
    for (size_t k = 0; k < outcome.scores.sums.size(); ++k) {
        const ggml_tensor * t = outcome.scores.sums[k];
        data.resize((size_t) ggml_nelements(t));
        ggml_backend_tensor_get(t, data.data(), 0, ggml_nbytes(t));
        q.scores.add(k, data.data(), (size_t) t->ne[0], (size_t) t->ne[2], cell);
    }
}
