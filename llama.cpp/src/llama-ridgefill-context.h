#pragma once

// RidgeFill's part of a llama_context: plans of announced prompts, row classes of a batch, counts, filled intervals and
// capture. The context calls it at the hooks of patches/0002-core.patch; without it (nullptr) nothing changes.

#include "llama-ridgefill-pass.h"
#include "llama-ridgefill-plan.h"

#include "ggml-backend.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct llama_cparams;
struct llama_batch;
struct llama_ubatch;

struct llama_ridgefill_context {
    const llama_ridgefill_projector * projector = nullptr;
    llama_ridgefill_params            params    = {};

    // ---- plan ----

    llama_ridgefill_plan plan_for(llama_pos begin, llama_pos end, const llama_ridgefill_params * overrides) const;
    llama_ridgefill_plan announce(llama_seq_id seq, llama_pos begin, llama_pos end, const llama_ridgefill_params * overrides);

    llama_ridgefill_counts   counts(llama_seq_id seq) const;
    llama_ridgefill_interval filled(llama_seq_id seq) const;
    void                 set_filled(llama_seq_id seq, llama_ridgefill_interval iv);

    // ---- hooks of llama_context ----

    // The class of each row of a batch (empty: all exact). A ubatch holds rows of one class. plain: no adapter is active.
    enum row_class : uint8_t { EXACT = 0, FILL = 1, PLUMB = 2 };
    std::vector<uint8_t> classify(const llama_batch & batch, const llama_cparams & cparams, bool plain);

    // What the pass shall do to the graph of this ubatch.
    ridgefill_task task(const llama_ubatch & ubatch) const;

    // The ubatch was computed: counts its rows, records what was filled, keeps captured rows.
    void commit(const llama_ubatch & ubatch, ggml_backend_sched_t sched);

    // Graph nodes that a fill graph has beyond the exact one.
    uint32_t n_extra_nodes() const;

    bool reserving = false; // graphs built now are fill graphs whatever their ubatch says

    // ---- capture ----

    struct capture_state {
        int32_t                 split  = 0;
        llama_ridgefill_target  target = LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
        std::vector<int32_t>    layers;        // empty: not capturing
        std::vector<int32_t>    width;         // per layer
        std::vector<std::vector<float>> rows;  // per layer, [n_rows][width]
    };
    capture_state capture;
    void capture_reset(); // at the beginning of a decode

    mutable ridgefill_outcome outcome; // of the graph built last

private:
    struct sequence {
        ridgefill_cursor         cursor;
        llama_ridgefill_counts   counts = { LLAMA_RIDGEFILL_MODE_OFF, LLAMA_RIDGEFILL_REASON_NO_PLAN, 0, 0 };
        llama_ridgefill_interval filled = { 0, 0 };
    };
    std::map<llama_seq_id, sequence> seqs;

    // why no row of the current batch may be filled, or NONE
    llama_ridgefill_reason obstacle(const llama_cparams & cparams, bool plain) const;
};

// so that llama-context.h needs no complete type
struct llama_ridgefill_context_deleter {
    void operator()(llama_ridgefill_context * ctx) const;
};
