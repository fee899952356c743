#pragma once

// RidgeFill: training-free late-layer cache fill.
//
// Layers 0..S-1 run exactly for every prompt row. For *bulk* rows a ridge map per later layer L predicts that layer's
// input from the stream entering layer S, and layer L only writes its cache. The exact head, the exact tail and every
// decode step run the full model.
//
// What may know what: a projector knows the maps of one side file and the model they fit; a context knows which rows
// of which sequence are bulk (the plan); callers know requests. No caller sees a tensor.
//
// Thread safety: as llama_context, one thread per context; one projector may serve many contexts of its model.

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// Bumped when a signature or a struct below changes; the Python bindings check it at import.
#define LLAMA_RIDGEFILL_ABI 3

LLAMA_API int32_t llama_ridgefill_abi(void);

struct llama_ridgefill_projector; // the maps of one side file, on the devices of their layers

enum llama_ridgefill_mode {
    LLAMA_RIDGEFILL_MODE_OFF = 0,     // identical to upstream
    LLAMA_RIDGEFILL_MODE_PLUMB = 1,   // plan, ubatch split and graph pass run, nothing is redirected: equals exact
    LLAMA_RIDGEFILL_MODE_SPEED = 2,   // every bulk row is filled
    LLAMA_RIDGEFILL_MODE_QUALITY = 3, // as speed, then selected bulk rows are run exactly before the tail goes on
};

// Which bulk rows quality mode runs exactly.
enum llama_ridgefill_select {
    LLAMA_RIDGEFILL_SELECT_ATTENTION = 0, // spans and rows: both of the next two within the share
    LLAMA_RIDGEFILL_SELECT_SPANS = 1,  // spans that the prompt's last queries (its question) attend to below the split
    LLAMA_RIDGEFILL_SELECT_ROWS = 2,   // single rows that the whole tail's queries attend to below the split
    LLAMA_RIDGEFILL_SELECT_CLASS = 3,  // the side file's score table, per window of 2048 positions
    LLAMA_RIDGEFILL_SELECT_RANDOM = 4, // control: as many rows as `class`, drawn by position
    LLAMA_RIDGEFILL_SELECT_ALL = 5,    // control: every bulk row
};

enum llama_ridgefill_target {
    LLAMA_RIDGEFILL_TARGET_LAYER_INPUT = 0, // the residual stream entering layer L
    LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT = 1, // what layer L's projections read: the output of its first norm
};

// Where the maps of layers on a device with memory of its own are.
enum llama_ridgefill_placement {
    LLAMA_RIDGEFILL_PLACEMENT_DEVICE = 0, // on that device
    LLAMA_RIDGEFILL_PLACEMENT_HOST = 1,   // in host memory; copied to the device for each use, for full cards
};

// Why rows of a prompt were not filled.
enum llama_ridgefill_reason {
    LLAMA_RIDGEFILL_REASON_NONE = 0,         // rows were (or will be) filled
    LLAMA_RIDGEFILL_REASON_NO_PROJECTOR = 1, // no side file is attached to the context
    LLAMA_RIDGEFILL_REASON_OFF = 2,          // mode off
    LLAMA_RIDGEFILL_REASON_SHORT = 3,        // fewer bulk rows than n_min_bulk
    LLAMA_RIDGEFILL_REASON_OUTPUTS = 4,      // the rows' own outputs are wanted (embeddings, logits, drafter features)
    LLAMA_RIDGEFILL_REASON_ADAPTER = 5,      // a LoRA or control vector is active; the maps fit the plain model only
    LLAMA_RIDGEFILL_REASON_NOT_CAUSAL = 6,   // non-causal attention
    LLAMA_RIDGEFILL_REASON_GRAPH = 7,        // the graph pass declined (see the log for the tensor that is missing)
    LLAMA_RIDGEFILL_REASON_NO_PLAN = 8,      // the prompt's length was not announced with llama_ridgefill_prompt
    LLAMA_RIDGEFILL_REASON_MEMORY =
        9, // quality mode: this kind of cache cannot run rows again, or too many rows to keep
    LLAMA_RIDGEFILL_REASON_NO_TABLE = 10, // quality mode by class: the side file has no score table
};

// A short stable word: "off", "plumb", "speed", "quality"; "none", "no_projector", "off", "short", ...; "attention",
// "spans", "rows", "class", "random", "all"
LLAMA_API const char * llama_ridgefill_mode_name(enum llama_ridgefill_mode mode);
LLAMA_API const char * llama_ridgefill_reason_name(enum llama_ridgefill_reason reason);
LLAMA_API const char * llama_ridgefill_select_name(enum llama_ridgefill_select select);
LLAMA_API const char * llama_ridgefill_placement_name(enum llama_ridgefill_placement placement);

// Parse such a word. Return false and leave the value alone for any other text.
LLAMA_API bool llama_ridgefill_mode_parse(const char * text, enum llama_ridgefill_mode * mode);
LLAMA_API bool llama_ridgefill_select_parse(const char * text, enum llama_ridgefill_select * select);
LLAMA_API bool llama_ridgefill_placement_parse(const char * text, enum llama_ridgefill_placement * placement);

struct llama_ridgefill_params {
    enum llama_ridgefill_mode mode;
    int32_t n_tail;                     // T: rows at the end of a prompt that stay exact, >= 1
    int32_t n_head;                     // rows at the beginning of a sequence that stay exact (attention sinks), >= 0
    int32_t n_min_bulk;                 // fewer bulk rows than this: the prompt runs exact, >= 0
    enum llama_ridgefill_select select; // quality mode: which bulk rows run exactly,
    float share;                        // and how many of them (of the matching ones for class): 0 .. 1
};

// mode speed, n_tail 2048, n_head 16, n_min_bulk 1024, select attention, share 0.13
LLAMA_API struct llama_ridgefill_params llama_ridgefill_default_params(void);

//
// projector
//

// Loads a side file and checks it against the model: format, architecture, dimensions, split, layers, tokenizer,
// scales. Nothing is read past the file's bounds and nothing stays loaded on failure. Returns NULL and writes one
// sentence
// "<code>: <file>: <key or tensor>: found X, allowed Y" to err (at most err_len bytes with the terminator).
// code is stable and listed in docs/format.md.
LLAMA_API struct llama_ridgefill_projector * llama_ridgefill_load(
    const struct llama_model * model, const char * path, enum llama_ridgefill_placement placement, char * err,
    size_t err_len
);

// Free after the last context that uses it and before the model.
LLAMA_API void llama_ridgefill_free(struct llama_ridgefill_projector * projector);

LLAMA_API int32_t llama_ridgefill_split(const struct llama_ridgefill_projector * projector); // S
LLAMA_API int32_t llama_ridgefill_n_maps(const struct llama_ridgefill_projector * projector);
LLAMA_API size_t llama_ridgefill_size(const struct llama_ridgefill_projector * projector); // bytes on devices
// bytes of maps in host memory that are copied to devices; 0: none are
LLAMA_API size_t llama_ridgefill_host_size(const struct llama_ridgefill_projector * projector);
// The most that the maps of a side file can take on one device, before any model is loaded; 0 when it cannot be read.
LLAMA_API size_t llama_ridgefill_file_size(const char * path, enum llama_ridgefill_placement placement);
LLAMA_API enum llama_ridgefill_target llama_ridgefill_target_of(const struct llama_ridgefill_projector * projector);
// sha256 of the side file, 64 hex digits: the identity that requests, marks and reports carry
LLAMA_API const char * llama_ridgefill_identity(const struct llama_ridgefill_projector * projector);
// general.name of the side file, or its file name
LLAMA_API const char * llama_ridgefill_name(const struct llama_ridgefill_projector * projector);
// true when the maps run as the ridgefill op, false on the portable path (Q8_0 mul_mat + add)
LLAMA_API bool llama_ridgefill_native(const struct llama_ridgefill_projector * projector);
// What differs from the model, or could not be compared, without refusing the file: "<code>: <file>: ...", codes as in
// docs/format.md. NULL past the last one.
LLAMA_API const char * llama_ridgefill_warning(const struct llama_ridgefill_projector * projector, size_t i);

//
// context
//

// Attaches a projector (NULL detaches) with the context's default parameters. Checks the parameters and tries the
// graph pass once; returns false with a sentence in err when either fails, and the context then serves exact.
LLAMA_API bool llama_ridgefill_attach(
    struct llama_context * ctx, const struct llama_ridgefill_projector * projector,
    struct llama_ridgefill_params params, char * err, size_t err_len
);

// The attached projector, or NULL.
LLAMA_API const struct llama_ridgefill_projector * llama_ridgefill_attached(const struct llama_context * ctx);
// The context's default parameters (mode off when nothing is attached).
LLAMA_API struct llama_ridgefill_params llama_ridgefill_get_params(const struct llama_context * ctx);

struct llama_ridgefill_plan {
    enum llama_ridgefill_mode mode;
    enum llama_ridgefill_reason reason;
    llama_pos bulk_begin; // bulk rows are [bulk_begin, bulk_end); empty when reason is not NONE
    llama_pos bulk_end;
};

// Announces that rows [pos_begin, pos_end) of a prompt of pos_end rows will be decoded next on seq_id (rows before
// pos_begin are already in memory), and resets the sequence's counts. overrides NULL: the context's parameters.
// Without this call every row runs exactly. The plan ends at pos_end: decode steps are exact.
LLAMA_API struct llama_ridgefill_plan llama_ridgefill_prompt(
    struct llama_context * ctx, llama_seq_id seq_id, llama_pos pos_begin, llama_pos pos_end,
    const struct llama_ridgefill_params * overrides
);

// The plan that llama_ridgefill_prompt would make; changes nothing.
LLAMA_API struct llama_ridgefill_plan llama_ridgefill_plan_for(
    const struct llama_context * ctx, llama_pos pos_begin, llama_pos pos_end,
    const struct llama_ridgefill_params * overrides
);

struct llama_ridgefill_counts {
    enum llama_ridgefill_mode mode;     // of the last announced prompt
    enum llama_ridgefill_reason reason; // why nothing was filled; NONE when n_filled > 0
    int32_t n_filled;                   // prompt rows filled since the announcement
    int32_t n_exact;                    // prompt rows run exactly since the announcement
    int32_t n_selected;                 // bulk rows among n_exact that quality mode selected
};

LLAMA_API struct llama_ridgefill_counts
llama_ridgefill_get_counts(const struct llama_context * ctx, llama_seq_id seq_id);

// The device of the context that is gone (an rpc-server that died), as "RPC0 (127.0.0.1:50052)" in at most len bytes.
// False when there is none. Once there is, llama_decode returns -3: weights and caches there are lost.
LLAMA_API bool llama_ridgefill_lost(const struct llama_context * ctx, char * text, size_t len);

//
// which cached rows were filled (an interval that contains all filled rows of the sequence; empty: begin == end)
//
// The context records what it filled. A caller that moves cached rows (copies a sequence, shifts positions, saves and
// restores state) moves the interval with them through these calls.
//

struct llama_ridgefill_interval {
    llama_pos begin;
    llama_pos end;
    enum llama_ridgefill_mode mode; // that filled them: speed or quality
};

LLAMA_API struct llama_ridgefill_interval llama_ridgefill_filled(const struct llama_context * ctx, llama_seq_id seq_id);
LLAMA_API void
llama_ridgefill_set_filled(struct llama_context * ctx, llama_seq_id seq_id, struct llama_ridgefill_interval filled);

// How many of the first n_match cached rows a prompt of n_prompt rows may reuse: no filled row in mode off or plumb, no
// filled row inside the new exact tail or head in mode speed. No filled row in mode quality, nor after it: which rows
// it ran exactly was decided by the tail of another prompt. Pure arithmetic on `filled`.
LLAMA_API llama_pos llama_ridgefill_reusable(
    struct llama_ridgefill_interval filled, struct llama_ridgefill_params params, llama_pos n_match, llama_pos n_prompt
);

// The sequence was rewound: rows from pos on left the cache. (A row that is decoded anew says so by itself.)
LLAMA_API void llama_ridgefill_cut(struct llama_context * ctx, llama_seq_id seq_id, llama_pos pos);

// The same without the rows between: each run of filled rows, oldest first. Returns how many there are and writes at
// most n_max. Models with recurrent layers need them where a restored state may later be rewound to before its last
// run.
LLAMA_API size_t llama_ridgefill_parts(
    const struct llama_context * ctx, llama_seq_id seq_id, struct llama_ridgefill_interval * parts, size_t n_max
);
LLAMA_API void llama_ridgefill_set_parts(
    struct llama_context * ctx, llama_seq_id seq_id, const struct llama_ridgefill_interval * parts, size_t n_parts
);

//
// recurrent states: a side file may hold a constant per recurrent late layer that corrects the state which the fill
// leaves. It is added once, behind the bulk, and taken off before the sequence's next bulk rows.
//

// Layers above the split whose state the side file corrects.
LLAMA_API int32_t llama_ridgefill_n_states(const struct llama_ridgefill_projector * projector);

// Scale of the correction, 0 .. 1, 1 unless set; at 0 nothing is added, bit for bit. Returns false and changes nothing
// for another value. Set it before the first prompt: cached rows keep what was added to their state.
LLAMA_API bool llama_ridgefill_set_alpha(struct llama_context * ctx, float alpha);
LLAMA_API float llama_ridgefill_alpha(const struct llama_context * ctx);

// Layer il's recurrent state after the sequence's last decoded row, as the cache has it: F32 [heads][V][K]. Returns its
// number of values (0: no such state) and writes them when n_max is not less. For fitting a correction.
LLAMA_API size_t
llama_ridgefill_state(struct llama_context * ctx, llama_seq_id seq_id, int32_t il, float * dst, size_t n_max);

//
// capture, for fitting maps: keeps the source rows and target rows of each decoded batch (fill off meanwhile)
//

// layers[i]: -1 for the source (stream entering layer split), else the layer whose target is kept. n_layers 0 ends it.
// Returns false with a sentence in err when a tensor cannot be found in the graph.
LLAMA_API bool llama_ridgefill_capture(
    struct llama_context * ctx, int32_t split, enum llama_ridgefill_target target, const int32_t * layers,
    size_t n_layers, char * err, size_t err_len
);

// Rows of the last llama_decode in batch order: F32 [n_rows][width], valid until the next one. NULL if not captured.
LLAMA_API const float *
llama_ridgefill_captured(struct llama_context * ctx, size_t i_layer, int32_t * n_rows, int32_t * width);

#ifdef __cplusplus
}
#endif
