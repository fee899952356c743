// Quality mode: the context's part of it, and the decode in parts.

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
#include <map>

// Kept rows may take this much host memory per prompt; a longer prompt keeps them as F16, a still longer one runs
// exact.
static constexpr size_t KEEP_BUDGET = 1024ull * 1024 * 1024;

// With recurrent layers attention chooses whole runs: a row's state is made from the rows before it, so neighbours
// repair each other. Runs of 64 leave less of the loss than single rows or runs of 8 (docs/results/hybrid-tiny.csv).
static constexpr llama_pos RECURRENT_RUN = 64;

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

//
// cells
//

// The cells that the rows of a ubatch already have, in the layout of find_slot().
llama_kv_cache::slot_info llama_kv_cache::ridgefill_placed(const llama_ubatch & ubatch) const {
    const uint32_t n_streams = n_stream > 1 ? ubatch.n_seqs_unq : 1;
    const uint32_t n_rows = ubatch.n_tokens / n_streams;

    slot_info res;
    res.resize(n_streams);
    if (ridgefill_replay) {
        res.s0 = res.s1 = 0;
        res.strm[0] = 0;
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            const auto it = ridgefill_replay->find(ubatch.pos[i]);
            if (it == ridgefill_replay->end()) {
                return {};
            }
            res.idxs[0].push_back(it->second);
        }
        return res;
    }
    res.s0 = LLAMA_MAX_SEQ;
    res.s1 = 0;
    res.reach = 0;
    for (uint32_t s = 0; s < n_streams; ++s) {
        for (uint32_t i = s * n_rows; i < (s + 1) * n_rows; ++i) {
            const llama_seq_id seq = ubatch.seq_id[i][0];
            res.strm[s] = (llama_seq_id) seq_to_stream[seq];
            const auto & places = v_cells[seq_to_stream[seq]].seq_pos_get(seq);
            const auto it = places.lower_bound({ubatch.pos[i], 0});
            if (it == places.end() || it->first != ubatch.pos[i]) {
                return {};
            }
            res.idxs[s].push_back(it->second);
            // rows run again come long before the last cell: what they cannot see need not be read
            if (i + 1 == (s + 1) * n_rows || ubatch.seq_id[i + 1][0] != seq) {
                for (auto seen = places.begin(); seen != places.end() && seen->first <= ubatch.pos[i]; ++seen) {
                    res.reach = std::max(res.reach, seen->second + 1);
                }
            }
        }
        res.s0 = std::min(res.s0, (uint32_t) res.strm[s]);
        res.s1 = std::max(res.s1, (uint32_t) res.strm[s]);
    }
    return res;
}

bool ridgefill_is_placed(const llama_ubatch & ubatch) {
    return ubatch.data
           && (ubatch.data->row_class == llama_ridgefill_context::RESUME
               || ubatch.data->row_class == llama_ridgefill_context::LATE);
}

//
// the decode in parts
//

// The rows of a sequence from pos on come again: the memory's own count of positions goes back, its states stay.
static void ridgefill_rewind(llama_memory_recurrent & recurrent, llama_seq_id seq, llama_pos pos) {
    const int32_t tail = recurrent.cells[seq].tail;
    if (tail >= 0) {
        recurrent.cells[tail].pos = pos - 1;
    }
}

namespace {

// A batch of chosen rows of another one, and where they came from.
struct sub_batch {
    llama_batch_ext batch;
    std::vector<int> from;

    // placed: rows may have gaps and lie before the sequence's end
    sub_batch(const llama_batch_ext & b, bool placed)
        : batch(
            b.n_tokens_max, b.n_embd_inp, b.n_embd_inp_enc, b.n_seq_max, placed ? nullptr : b.mem, b.n_vocab,
            b.n_pos_per_embd
        ) {
        batch.gaps = placed;
        batch.n_embd = b.n_embd;
        batch.embd = b.embd;
    }

    void add(const llama_batch_ext & b, int i, bool output) {
        batch.tokens.push_back(b.tokens[i]);
        batch.tokens.back().output = output && b.tokens[i].output;
        from.push_back(i);
    }
};

} // namespace

int llama_context::ridgefill_decode(const llama_batch_ext & batch) {
    if (ridgefill->conflict) {
        LLAMA_LOG_ERROR(
            "%s: found a row that must run in full behind rows of a quality prompt whose late layers have not run, "
            "allowed: the rest of that prompt, without outputs of its bulk\n",
            __func__
        );
        return -1;
    }
    const std::vector<uint8_t> cls = balloc->row_class;
    const int n_rows = (int) batch.tokens.size();
    const auto seq_of = [&](int i) { return *batch.tokens[i].seq_ids.begin(); };

    struct prompt {
        std::shared_ptr<llama_ridgefill_context::snapshot> before;
        llama_pos pos_first = 0;
        bool complete = false; // its last row is here, or an output is wanted
    };
    std::map<llama_seq_id, prompt> prompts; // those with tail rows in the batch
    for (int i = 0; i < n_rows; ++i) {
        if (cls[i] == llama_ridgefill_context::EARLY) {
            const llama_seq_id seq = seq_of(i);
            prompt & p = prompts[seq];
            p.before = p.before ? p.before : ridgefill->save(seq);
            p.complete |= batch.tokens[i].output || batch.tokens[i].pos[0] == ridgefill->quality_of(seq)->pos_end - 1;
        }
    }
    const auto is_deferred = [&](int i) { return batch.tokens[i].seq_ids.size() == 1 && prompts.count(seq_of(i)) > 0; };
    for (int i = n_rows - 1; i >= 0; --i) {
        if (is_deferred(i)) {
            prompts[seq_of(i)].pos_first = batch.tokens[i].pos[0];
        }
    }

    const int64_t n_eval_before = n_p_eval + n_queued_tokens;

    const auto run = [&](const sub_batch & p, llama_ridgefill_context::half now) {
        ridgefill->now = now;
        ridgefill->uncut = false;
        const int rc = p.batch.tokens.empty() ? 0 : decode(p.batch);
        ridgefill->now = llama_ridgefill_context::WHOLE;
        if (!rc && ridgefill->uncut) {
            LLAMA_LOG_ERROR(
                "%s: the pass could not cut a graph at layer S: %s\n", __func__, ridgefill->outcome.reason.c_str()
            );
            return -3;
        }
        return rc;
    };

    int rc = 0;

    // all rows of such a prompt as far as layer S (bulk rows entirely), one prompt at a time: a score is one sequence's
    for (auto & [seq, p] : prompts) {
        sub_batch first(batch, false);
        for (int i = 0; i < n_rows; ++i) {
            if (is_deferred(i) && seq_of(i) == seq) {
                first.add(batch, i, false);
            }
        }
        rc = rc ? rc : run(first, llama_ridgefill_context::FIRST_HALF);
    }

    // the selected rows and tail rows of earlier batches
    std::unique_ptr<ridgefill_replay> replay;
    for (auto & [seq, p] : prompts) {
        if (rc || !p.complete) {
            continue;
        }
        ridgefill_prompt_quality & q = *ridgefill->quality_of(seq);
        const auto & table = ridgefill->projector->score;
        q.choose(table.empty() ? nullptr : &table, ridgefill->recurrent ? RECURRENT_RUN : 1);
        std::vector<llama_pos> again = q.chosen;
        if (ridgefill->in_order()) { // all of the bulk, the selected rows among it
            again.clear();
            for (size_t i = 0; i < q.n_bulk(); ++i) {
                again.push_back(q.rows.pos_at(i));
            }
        }
        if (ridgefill->recurrent) {
            ridgefill_rewind(*ridgefill->recurrent, seq, again.front());
        }
        if (ridgefill->ring) {
            replay = std::make_unique<ridgefill_replay>(*ridgefill->ring, q.ring);
        }
        // of the tail: what earlier batches brought
        for (size_t i = q.n_bulk(); i < q.rows.size() && q.rows.pos_at(i) < p.pos_first; ++i) {
            again.push_back(q.rows.pos_at(i));
        }
        // bulk and tail apart: the correction comes between them
        const size_t n_bulk = (size_t) (std::lower_bound(again.begin(), again.end(), q.bulk_end) - again.begin());
        for (size_t begin = 0, end; begin < again.size() && !rc; begin = end) {
            end = std::min(begin < n_bulk ? n_bulk : again.size(), begin + cparams.n_batch);
            if (replay) {
                const auto last = std::lower_bound(again.begin(), again.end(), q.ring.end_of_ubatch(again[begin]));
                end = std::min(end, (size_t) (last - again.begin()));
            }
            sub_batch rows(batch, true);
            for (size_t k = begin; k < end; ++k) {
                llama_batch_ext::token t;
                t.id = q.rows.token_of(again[k]);
                t.pos[0] = again[k];
                t.seq_ids = {seq};
                rows.batch.tokens.push_back(t);
            }
            rc = run(rows, llama_ridgefill_context::SECOND_HALF);
        }
        if (!rc) {
            ridgefill->count_selected(seq, (int32_t) q.chosen.size());
        }
    }

    // the tail rows of complete prompts and everybody else's rows: these have the batch's outputs
    sub_batch last(batch, true);
    for (int i = 0; i < n_rows; ++i) {
        if (!is_deferred(i) || (cls[i] == llama_ridgefill_context::EARLY && prompts[seq_of(i)].complete)) {
            last.add(batch, i, true);
        }
    }
    rc = rc ? rc : run(last, llama_ridgefill_context::SECOND_HALF);
    replay.reset();

    if (rc) {
        for (auto & [seq, p] : prompts) {
            // a state cannot go back, nor a window; then nothing of the sequence is left
            if (ridgefill->ring || !memory->seq_rm(seq, p.pos_first, -1)) {
                memory->seq_rm(seq, -1, -1);
            }
            ridgefill->restore(seq, *p.before, memory->seq_pos_max(seq));
        }
        return rc;
    }

    for (auto & [seq, p] : prompts) {
        if (p.complete) {
            ridgefill->end_quality(seq);
        }
    }

    // rows ran in two halves, but are one row each
    synchronize();
    n_p_eval = (int32_t) (n_eval_before + n_rows);

    // the outputs are those of the last part, in the batch's order
    const std::vector<int32_t> ids = output_ids;
    std::fill(output_ids.begin(), output_ids.end(), -1);
    n_outputs = last.from.empty() ? 0 : n_outputs;
    for (size_t k = 0; k < last.from.size(); ++k) {
        output_ids[last.from[k]] = ids[k];
    }
    return 0;
}
