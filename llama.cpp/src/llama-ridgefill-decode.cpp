// Quality mode: the decode in parts, and the cells of rows that run again.

#include "llama-ridgefill-context.h"
#include "llama-ridgefill-projector.h"
#include "llama-ridgefill-ring.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <map>

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

// With recurrent layers attention chooses whole runs: a row's state is made from the rows before it, so neighbours
// repair each other. Runs of 64 leave less of the loss than single rows or runs of 8 (docs/results/hybrid-tiny.csv).
static constexpr llama_pos RECURRENT_RUN = 64;

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
