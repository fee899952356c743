#pragma once

// The graph pass: makes the graph of a bulk ubatch write the late caches from maps instead of from the late layers, or
// cuts a graph at the source for quality mode. Works on any architecture whose source and targets it can find;
// otherwise it declines and the graph stays exact.

#include "llama-ridgefill.h"

#include "llama-ridgefill-correction.h"
#include "llama-ridgefill-decay.h"
#include "llama-ridgefill-score.h"

#include <memory>
#include <string>
#include <vector>

struct ggml_tensor;
struct llama_model;
struct llm_graph_params;
class llm_graph_result;

struct llama_ubatch;

struct ridgefill_maps; // llama-ridgefill-projector.h

// Where a cut graph gets its inputs from.
struct ridgefill_inputs {
    virtual ~ridgefill_inputs() = default;

    // the ubatch's rows of the stream entering layer S: F32 [n_rows][width]
    virtual void source_rows(const llama_ubatch & ubatch, int64_t width, float * out) const = 0;

    // how much each query counts: F32 [n_rows][N_QUERIES] (llama-ridgefill-select.h)
    virtual void query_weights(const llama_ubatch & ubatch, float * out) const = 0;

    // the ubatch's bulk rows that were selected, by their places in it, ascending
    virtual std::vector<int32_t> exact_rows(const llama_ubatch & ubatch) const = 0;
};

// What the pass shall do to one graph, and what it did. Part of the graph's identity: a graph built for one task is not
// reused for another.
struct ridgefill_task {
    enum kind {
        NONE,
        FILL,    // late layers write their caches from maps
        PLUMB,   // as FILL, nothing redirected
        CAPTURE, // exact, and keeps tensors for fitting
        KEEP,    // as FILL, and the source stays readable
        EARLY,   // layers below S only; the source and the queries' attention to the cache stay readable
        RESUME,  // layers from S on only, from given source rows
        HOLD,    // as EARLY, without the attention
        LATE,    // as RESUME, late layers write their caches from maps
        MIXED,   // as LATE, and some rows run the late layers, in one graph
    };

    kind what = NONE;
    int32_t split = 0;
    llama_ridgefill_target target = LLAMA_RIDGEFILL_TARGET_LAYER_INPUT;
    const ridgefill_maps * maps = nullptr;          // FILL, KEEP, LATE, MIXED
    const ridgefill_inputs * inputs = nullptr;      // EARLY, RESUME, LATE, MIXED
    const std::vector<int32_t> * layers = nullptr;  // CAPTURE: -1 or a layer
    const ridgefill_corrections * states = nullptr; // RESUME, LATE, MIXED: layers whose gates are added up
    const llama_model * model = nullptr;            // MIXED
    int64_t n_exact = 0;                            // MIXED: rows that run the late layers
    struct ridgefill_outcome * outcome = nullptr;   // written by the pass, owned by the context

    bool operator==(const ridgefill_task & o) const {
        return what == o.what && split == o.split && target == o.target && maps == o.maps && layers == o.layers
               && inputs == o.inputs && states == o.states && n_exact == o.n_exact;
    }
};

struct ridgefill_outcome {
    bool applied = false;
    std::string reason; // why not
    int n_nodes_before = 0;
    int n_nodes_after = 0;
    std::vector<ggml_tensor *> captured; // CAPTURE: one per layer of the task
    ggml_tensor * source = nullptr;      // KEEP, EARLY, HOLD: the stream entering layer S
    ridgefill_score_nodes scores;        // EARLY
    ridgefill_decay_nodes decay;         // RESUME, LATE, MIXED
};

// Called as the last step of llama_model::build_graph, so that nothing re-adds what is pruned. Reads params.ridgefill.
void llama_ridgefill_build(const llm_graph_params & params, llm_graph_result & res);
