#pragma once

// RidgeFill's part of a llama_context: plans of announced prompts, row classes of a batch, counts, filled intervals and
// capture. The context calls it at the hooks of patches/0002-core.patch; without it (nullptr) nothing changes.

#include "llama-ridgefill-marks.h"
#include "llama-ridgefill-pass.h"
#include "llama-ridgefill-plan.h"
#include "llama-ridgefill-quality.h"
#include "llama-ridgefill-remote.h"

#include "ggml-backend.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct llama_cparams;
struct llama_batch;
struct llama_memory_i;
class llama_memory_recurrent;
struct llama_ubatch;

struct llama_ridgefill_context : ridgefill_inputs {
    const llama_ridgefill_projector * projector = nullptr;
    llama_ridgefill_params params = {};

    // Another side file: what an earlier one added to the states of its sequences is forgotten.
    void attach(const llama_ridgefill_projector * next, const llama_ridgefill_params & defaults);

    // ---- plan ----

    llama_ridgefill_plan plan_for(llama_pos begin, llama_pos end, const llama_ridgefill_params * overrides) const;
    llama_ridgefill_plan
    announce(llama_seq_id seq, llama_pos begin, llama_pos end, const llama_ridgefill_params * overrides);

    llama_ridgefill_counts counts(llama_seq_id seq) const;
    llama_ridgefill_interval filled(llama_seq_id seq) const;
    void set_filled(llama_seq_id seq, llama_ridgefill_interval iv);
    void set_parts(llama_seq_id seq, const llama_ridgefill_interval * list, size_t n);
    void cut(llama_seq_id seq, llama_pos pos);
    const ridgefill_marks * marks(llama_seq_id seq) const; // nullptr: none

    float alpha = 1.0f; // scale of the side file's state correction

    // ---- hooks of llama_context ----

    // The class of each row of a batch (empty: all exact). A ubatch holds rows of one class. plain: no adapter is
    // active. EARLY, RESUME, HOLD, LATE: rows of quality mode that run in two halves (llama-ridgefill-decode.cpp).
    // MIXED: reserved for only; a LATE ubatch becomes it when some of its rows were selected.
    enum row_class : uint8_t {
        EXACT = 0,
        FILL = 1,
        PLUMB = 2,
        KEEP = 3,
        EARLY = 4,
        RESUME = 5,
        HOLD = 6,
        LATE = 7,
        MIXED = 8
    };
    std::vector<uint8_t> classify(const llama_batch & batch, const llama_cparams & cparams, bool plain);

    // What the pass shall do to the graph of this ubatch.
    ridgefill_task task(const llama_ubatch & ubatch) const;

    // The ubatch will be computed next: its rows are written anew; adds the state correction behind a filled part,
    // takes it off before the next one.
    void prepare(const llama_ubatch & ubatch, llama_memory_i * memory, ggml_backend_sched_t sched);

    // The ubatch was computed: counts its rows, records what was filled, keeps captured rows.
    void commit(const llama_ubatch & ubatch, ggml_backend_sched_t sched);

    // Graph nodes that a fill graph has beyond the exact one.
    uint32_t n_extra_nodes() const;

    row_class reserving = EXACT; // the class of graphs that are built for reservation

    // ---- quality mode ----

    const class llama_kv_cache * cache = nullptr;       // the context's, when it is of the plain kind
    llama_memory_recurrent * recurrent = nullptr;       // beside it
    class llama_kv_cache * ring = nullptr;              // the cache of layers with a sliding window, beside it
    bool in_order() const { return recurrent || ring; } // late layers must see all bulk rows in order
    bool can_resume = false;                            // the caches and the graph allow it

    // What a decode does with rows of a tail that waits for its selection. WHOLE: classify() only notes that there are
    // some, and the decode is then done in parts (llama_context::ridgefill_decode).
    enum half { WHOLE, FIRST_HALF, SECOND_HALF };
    half now = WHOLE;
    bool deferred = false; // the batch has such rows
    bool conflict = false; // or rows that must not run now
    bool uncut = false; // a second half ran as a whole graph: the pass declined it, though not when memory was reserved

    void find_caches(llama_memory_i * memory, uint32_t n_seq_max);

    ridgefill_prompt_quality * quality_of(llama_seq_id seq); // nullptr: none under way

    // one row or more was selected: moves it from the filled to the exact ones
    void count_selected(llama_seq_id seq, int32_t n);

    // ridgefill_inputs
    void source_rows(const llama_ubatch & ubatch, int64_t width, float * out) const override;
    void query_weights(const llama_ubatch & ubatch, float * out) const override;
    std::vector<int32_t> exact_rows(const llama_ubatch & ubatch) const override;

    // A decode in parts that fails leaves the prompt as it was before it.
    struct snapshot;
    std::shared_ptr<snapshot> save(llama_seq_id seq) const;
    void restore(llama_seq_id seq, const snapshot & from, llama_pos pos_max); // pos_max: what is left in memory

    void end_quality(llama_seq_id seq); // the prompt's tail has run, or goes on exactly

    // ---- capture ----

    struct capture_state {
        int32_t split = 0;
        llama_ridgefill_target target = LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
        std::vector<int32_t> layers;          // empty: not capturing
        std::vector<int32_t> width;           // per layer
        std::vector<std::vector<float>> rows; // per layer, [n_rows][width]
    };
    capture_state capture;
    void capture_reset(); // at the beginning of a decode

    mutable ridgefill_outcome outcome; // of the graph built last

  private:
    struct sequence {
        ridgefill_cursor cursor;
        llama_ridgefill_counts counts = {LLAMA_RIDGEFILL_MODE_OFF, LLAMA_RIDGEFILL_REASON_NO_PLAN, 0, 0, 0};
        ridgefill_marks marks;
        std::unique_ptr<ridgefill_prompt_quality> quality;
        llama_pos unfinished = -1; // the first row that only ran its first half
    };
    std::map<llama_seq_id, sequence> seqs;

    float assumed_scale() const; // of a complete part whose history is not known

    // why no row of the current batch may be filled, or NONE
    llama_ridgefill_reason obstacle(const llama_cparams & cparams, bool plain) const;

    // Turns a plan of quality mode that cannot be carried out into an exact one with its reason.
    void check_quality(llama_ridgefill_plan & plan, const llama_ridgefill_params & params) const;
    std::unique_ptr<ridgefill_prompt_quality>
    start_quality(const llama_ridgefill_plan & plan, llama_pos end, const llama_ridgefill_params & params) const;
    bool has_conflict(const llama_batch & batch, const std::vector<uint8_t> & classes) const;
    void keep_rows(const llama_ubatch & ubatch);
    void add_decay(const llama_ubatch & ubatch, ggml_backend_sched_t sched); // its gates, from the graph that ran last
    void add_scores(const llama_ubatch & ubatch); // the attention of its queries, from the graph that ran last
};

// Its rows have their cells already.
bool ridgefill_is_placed(const llama_ubatch & ubatch);

// The context's part, made when it is first used.
llama_ridgefill_context & ridgefill_state_of(llama_context * ctx);

// so that llama-context.h needs no complete type
struct llama_ridgefill_context_deleter {
    void operator()(llama_ridgefill_context * ctx) const;
};
