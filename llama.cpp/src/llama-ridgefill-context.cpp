#include "llama-ridgefill-context.h"

#include "llama-ridgefill-correction.h"
#include "llama-ridgefill-projector.h"

#include "llama-batch.h"
#include "llama-cparams.h"
#include "llama-impl.h"

#include <algorithm>
#include <set>

llama_ridgefill_plan
llama_ridgefill_context::plan_for(llama_pos begin, llama_pos end, const llama_ridgefill_params * overrides) const {
    if (!projector) {
        return {LLAMA_RIDGEFILL_MODE_OFF, LLAMA_RIDGEFILL_REASON_NO_PROJECTOR, 0, 0};
    }
    const llama_ridgefill_params & p = overrides ? *overrides : params;
    llama_ridgefill_plan plan = ridgefill_plan_make(begin, end, p, projector->tile);
    check_quality(plan, p);
    return plan;
}

llama_ridgefill_plan llama_ridgefill_context::announce(
    llama_seq_id seq, llama_pos begin, llama_pos end, const llama_ridgefill_params * overrides
) {
    const llama_ridgefill_plan plan = plan_for(begin, end, overrides);
    sequence & s = seqs[seq];
    s.cursor.start(plan, begin, end);
    s.counts = {plan.mode, plan.reason, 0, 0, 0};
    s.quality = start_quality(plan, end, overrides ? *overrides : params);
    s.unfinished = s.unfinished >= begin ? -1 : s.unfinished;
    return plan;
}

llama_ridgefill_counts llama_ridgefill_context::counts(llama_seq_id seq) const {
    const auto it = seqs.find(seq);
    return it == seqs.end() ? sequence().counts : it->second.counts;
}

llama_ridgefill_interval llama_ridgefill_context::filled(llama_seq_id seq) const {
    const auto it = seqs.find(seq);
    return it == seqs.end() ? llama_ridgefill_interval{} : it->second.marks.hull();
}

void llama_ridgefill_context::set_filled(llama_seq_id seq, llama_ridgefill_interval iv) {
    set_parts(seq, &iv, 1);
}

void llama_ridgefill_context::set_parts(llama_seq_id seq, const llama_ridgefill_interval * list, size_t n) {
    seqs[seq].marks.set(list, n, assumed_scale());
    seqs[seq].unfinished = -1; // another state
}

void llama_ridgefill_context::cut(llama_seq_id seq, llama_pos pos) {
    const auto it = seqs.find(seq);
    if (it != seqs.end()) {
        it->second.marks.cut(pos);
        it->second.unfinished = it->second.unfinished >= pos ? -1 : it->second.unfinished;
    }
}

const ridgefill_marks * llama_ridgefill_context::marks(llama_seq_id seq) const {
    const auto it = seqs.find(seq);
    return it == seqs.end() ? nullptr : &it->second.marks;
}

float llama_ridgefill_context::assumed_scale() const {
    return projector && !projector->states.empty() ? alpha : 0.0f;
}

void llama_ridgefill_context::attach(const llama_ridgefill_projector * next, const llama_ridgefill_params & defaults) {
    if (projector != next) {
        for (auto & [id, s] : seqs) {
            s.marks.forget_applied();
            if (s.quality) { // its rows are another layer's: what is still to come of the prompt runs exactly
                s.quality.reset();
                s.cursor.plan.reason = s.counts.reason = LLAMA_RIDGEFILL_REASON_NO_PLAN;
            }
        }
    }
    projector = next;
    params = defaults;
    outcome = {};
}

llama_ridgefill_reason llama_ridgefill_context::obstacle(const llama_cparams & cparams, bool plain) const {
    if (!plain) {
        return LLAMA_RIDGEFILL_REASON_ADAPTER;
    }
    if (!cparams.causal_attn) {
        return LLAMA_RIDGEFILL_REASON_NOT_CAUSAL;
    }
    // drafters read features of all prompt rows; below the split they are exact
    const bool nextn = cparams.embeddings_nextn && !cparams.embeddings_nextn_masked;
    const auto & layer_inp = cparams.embeddings_layer_inp;
    const size_t above = (size_t) projector->split + 1;
    const bool late =
        layer_inp.size() > above && std::find(layer_inp.begin() + above, layer_inp.end(), true) != layer_inp.end();
    if (cparams.embeddings || nextn || late) {
        return LLAMA_RIDGEFILL_REASON_OUTPUTS;
    }
    return LLAMA_RIDGEFILL_REASON_NONE;
}

std::vector<uint8_t>
llama_ridgefill_context::classify(const llama_batch & batch, const llama_cparams & cparams, bool plain) {
    std::vector<uint8_t> res(batch.n_tokens, EXACT);
    deferred = false;
    if (!projector || !capture.layers.empty()) {
        deferred = conflict = has_conflict(batch, res);
        return {};
    }
    const llama_ridgefill_reason reason = obstacle(cparams, plain);
    const bool layer_inputs =
        std::count(cparams.embeddings_layer_inp.begin(), cparams.embeddings_layer_inp.end(), true) > 0;

    // copies: the batch may still fail, commit() advances the real ones
    std::map<llama_seq_id, ridgefill_cursor> cursors;
    bool any = false;
    std::set<llama_seq_id> wants_bulk_outputs;
    std::set<llama_seq_id> keeps; // bulk rows come before the tail in this very batch

    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        // rows shared by sequences belong to no single prompt
        const llama_seq_id id = batch.seq_id[i][0];
        const auto it = batch.n_seq_id[i] == 1 ? seqs.find(id) : seqs.end();
        if (it == seqs.end()) {
            continue;
        }
        const llama_pos pos = batch.pos[i];
        ridgefill_prompt_quality * quality = it->second.quality.get();
        if (now == SECOND_HALF && quality && quality->rows.has(pos)) {
            res[i] = in_order() && pos < quality->bulk_end ? LATE : RESUME;
            any = true;
            continue;
        }
        if (!it->second.cursor.active) {
            continue;
        }
        ridgefill_cursor & cursor = cursors.emplace(id, it->second.cursor).first->second;
        if (!cursor.take(pos)) {
            continue;
        }
        const bool bulk = cursor.is_bulk(pos);
        const bool tail = cursor.is_tail(pos) && quality && (quality->has_bulk() || keeps.count(id));
        if (!bulk && !tail) {
            continue;
        }
        if (reason != LLAMA_RIDGEFILL_REASON_NONE || (bulk && batch.logits[i]) || (quality && layer_inputs)) {
            it->second.counts.reason = reason != LLAMA_RIDGEFILL_REASON_NONE ? reason : LLAMA_RIDGEFILL_REASON_OUTPUTS;
            if (batch.logits[i]) {
                wants_bulk_outputs.insert(id);
            }
            continue;
        }
        if (tail && wants_bulk_outputs.count(id)) { // its parts would overwrite those outputs
            it->second.counts.reason = LLAMA_RIDGEFILL_REASON_OUTPUTS;
            it->second.quality.reset();
            continue;
        }
        deferred = deferred || (tail && now == WHOLE);
        if (bulk && quality) {
            keeps.insert(id);
        }
        res[i] = tail                                             ? EARLY
                 : quality                                        ? (in_order() ? HOLD : KEEP)
                 : cursor.plan.mode == LLAMA_RIDGEFILL_MODE_PLUMB ? PLUMB
                                                                  : FILL;
        any = true;
    }

    conflict = has_conflict(batch, res);
    deferred = deferred || conflict;
    if (!any) {
        res.clear();
    }
    return res;
}

// Rows that only ran their first half have no late caches yet: no row behind them may run in full.
bool llama_ridgefill_context::has_conflict(const llama_batch & batch, const std::vector<uint8_t> & classes) const {
    std::map<llama_seq_id, llama_pos> open; // the first such row
    for (const auto & [id, s] : seqs) {
        if (s.unfinished >= 0) {
            open[id] = s.unfinished;
        }
    }
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        const bool half = classes[i] == HOLD || classes[i] == EARLY;
        const bool full = classes[i] == EXACT || classes[i] == FILL || classes[i] == PLUMB;
        for (int32_t k = 0; k < batch.n_seq_id[i]; ++k) {
            const llama_seq_id id = batch.seq_id[i][k];
            const auto it = open.find(id);
            if (it != open.end() && batch.pos[i] <= it->second) {
                open.erase(it); // written anew
            } else if (it != open.end() && full) {
                return true;
            }
            if (half) {
                open.emplace(id, batch.pos[i]);
            }
        }
    }
    return false;
}

static bool is_second_half(ridgefill_task::kind what) {
    return what == ridgefill_task::RESUME || what == ridgefill_task::LATE || what == ridgefill_task::MIXED;
}

ridgefill_task llama_ridgefill_context::task(const llama_ubatch & ubatch) const {
    ridgefill_task res;
    res.outcome = &outcome;
    if (!capture.layers.empty()) {
        res.what = ridgefill_task::CAPTURE;
        res.split = capture.split;
        res.target = capture.target;
        res.layers = &capture.layers;
        return res;
    }
    const uint8_t cls = reserving != EXACT ? (uint8_t) reserving
                        : ubatch.data      ? ubatch.data->row_class
                                           : (uint8_t) EXACT;
    if (!projector || cls == EXACT) {
        return res;
    }
    res.split = projector->split;
    res.target = projector->target;
    res.maps = &projector->maps;
    res.inputs = this;
    static constexpr ridgefill_task::kind KIND_OF[] = {
        ridgefill_task::NONE, ridgefill_task::FILL,  ridgefill_task::PLUMB,
        ridgefill_task::KEEP, ridgefill_task::EARLY, ridgefill_task::RESUME,
        ridgefill_task::HOLD, ridgefill_task::LATE,  ridgefill_task::MIXED,
    };
    res.what = KIND_OF[cls];
    if (cls == MIXED) { // all rows but one of each sequence is the most
        res.n_exact = ubatch.n_tokens - ubatch.n_seqs;
    } else if (cls == LATE && reserving == EXACT) {
        res.n_exact = (int64_t) exact_rows(ubatch).size();
        res.what = res.n_exact == 0                 ? ridgefill_task::LATE
                   : res.n_exact == ubatch.n_tokens ? ridgefill_task::RESUME
                                                    : ridgefill_task::MIXED;
    }
    res.model = projector->model;
    if (!projector->states.empty() && is_second_half(res.what)) {
        res.states = &projector->states;
    }
    return res;
}

// Are the rows of such a graph filled, now or behind the selection?
static bool is_fill(ridgefill_task::kind what) {
    return what == ridgefill_task::FILL || what == ridgefill_task::KEEP || what == ridgefill_task::HOLD;
}

void llama_ridgefill_context::prepare(
    const llama_ubatch & ubatch, llama_memory_i * memory, ggml_backend_sched_t sched
) {
    if (seqs.empty() || !capture.layers.empty()) {
        return;
    }
    const ridgefill_task::kind what = task(ubatch).what;
    if (recurrent && (what == ridgefill_task::HOLD || what == ridgefill_task::EARLY || is_second_half(what))) {
        ridgefill_settle(*recurrent, ubatch, sched);
    }
    if (what == ridgefill_task::LATE || what == ridgefill_task::MIXED) {
        return; // its first half has taken the correction off
    }
    const bool fill = is_fill(what);
    const bool placed = what == ridgefill_task::RESUME;
    const bool corrects = projector && !projector->states.empty();

    std::set<llama_seq_id> seen;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        for (int32_t k = 0; k < ubatch.n_seq_id[i]; ++k) {
            const llama_seq_id id = ubatch.seq_id[i][k];
            const auto it = seqs.find(id);
            if (it == seqs.end() || !seen.insert(id).second) {
                continue;
            }
            const llama_pos pos = ubatch.pos[i];
            ridgefill_marks & marks = it->second.marks;
            if (!placed) {
                marks.cut(pos);
            }
            if (what == ridgefill_task::HOLD && ring && it->second.quality) {
                it->second.quality->ring.start(ring->get_cells(id));
            }
            if (what == ridgefill_task::EARLY) {
                continue; // the late layers have not seen the bulk yet
            }

            const float scale = fill ? -marks.applied() : marks.open_at(pos) ? alpha : 0.0f;
            if (!corrects || scale == 0.0f) {
                continue;
            }
            const auto & quality = it->second.quality;
            const auto share = fill      ? marks.share()
                               : quality ? std::make_shared<const ridgefill_shares>(quality->filled_shares())
                                         : nullptr;
            ggml_backend_sched_synchronize(sched); // earlier rows may still be on their way to the state
            llama_memory_recurrent * recurrent = ridgefill_recurrent(memory);
            if (!recurrent || !ridgefill_correction_add(*recurrent, id, projector->states, scale, share.get())) {
                continue;
            }
            if (fill) {
                marks.undone(pos);
            } else {
                marks.apply(scale, share);
            }
        }
    }
}

void llama_ridgefill_context::commit(const llama_ubatch & ubatch, ggml_backend_sched_t sched) {
    const ridgefill_task::kind what = task(ubatch).what;

    if (what == ridgefill_task::CAPTURE && outcome.applied) {
        ggml_backend_sched_synchronize(sched);
        for (size_t i = 0; i < outcome.captured.size(); ++i) {
            ggml_tensor * t = outcome.captured[i];
            const size_t width = (size_t) (ggml_nelements(t) / ubatch.n_tokens);
            auto & rows = capture.rows[i];
            capture.width[i] = (int32_t) width;
            // a split by sequences takes the batch's rows in another order
            for (uint32_t k = 0; k < ubatch.n_tokens; ++k) {
                const size_t at = (size_t) ubatch.data->batch_idxs[k] * width;
                rows.resize(std::max(rows.size(), at + width));
                ggml_backend_tensor_get(t, rows.data() + at, k * width * sizeof(float), width * sizeof(float));
            }
        }
        return;
    }

    if (is_second_half(what)) {
        uncut = uncut || !outcome.applied;
        add_decay(ubatch, sched);
        return; // these rows were counted when they ran their first half
    }
    const bool keeps = what == ridgefill_task::KEEP || what == ridgefill_task::EARLY || what == ridgefill_task::HOLD;
    if (keeps && outcome.applied) {
        ggml_backend_sched_synchronize(sched);
        if (what == ridgefill_task::EARLY) {
            add_scores(ubatch);
        }
        keep_rows(ubatch);
    }

    const bool fills = is_fill(what);
    const bool filled = fills && outcome.applied;

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_pos pos = ubatch.pos[i];
        for (int32_t k = 0; k < ubatch.n_seq_id[i]; ++k) {
            const auto it = seqs.find(ubatch.seq_id[i][k]);
            if (it == seqs.end()) {
                continue;
            }
            sequence & s = it->second;
            if (s.unfinished >= pos) {
                s.unfinished = -1; // written anew
            }
            if (s.unfinished < 0 && (what == ridgefill_task::HOLD || what == ridgefill_task::EARLY)) {
                s.unfinished = pos;
            }
            if (filled) {
                s.marks.add(pos, s.cursor.plan.mode);
            }
            if (!s.cursor.take(pos)) {
                continue;
            }
            if (filled) {
                s.counts.n_filled++;
                s.counts.reason = LLAMA_RIDGEFILL_REASON_NONE;
            } else {
                s.counts.n_exact++;
                if (fills && s.counts.n_filled == 0) {
                    s.counts.reason = LLAMA_RIDGEFILL_REASON_GRAPH;
                }
            }
        }
    }
}

uint32_t llama_ridgefill_context::n_extra_nodes() const {
    if (!projector) {
        return 0;
    }
    const size_t n_maps = ridgefill_map::max_nodes * (projector->maps.maps.size() + 1);
    const size_t n_decay = RIDGEFILL_DECAY_MAX_NODES * projector->states.size();
    return (uint32_t) (n_maps + n_decay + RIDGEFILL_SCORE_MAX_NODES);
}

void llama_ridgefill_context::capture_reset() {
    for (auto & rows : capture.rows) {
        rows.clear();
    }
}

void llama_ridgefill_context_deleter::operator()(llama_ridgefill_context * ctx) const {
    delete ctx;
}
