// The C API of llama-ridgefill.h, and the members of llama_context that need its private parts.

#include "llama-ridgefill.h"

#include "llama-ridgefill-context.h"
#include "llama-ridgefill-projector.h"

#include "ggml-ridgefill-plan.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <cstdio>
#include <cstring>

static bool fail(char * err, size_t err_len, const std::string & text) {
    if (err && err_len > 0) {
        snprintf(err, err_len, "%s", text.c_str());
    }
    return false;
}

llama_ridgefill_context & ridgefill_state_of(llama_context * ctx) {
    if (!ctx->ridgefill) {
        ctx->ridgefill.reset(new llama_ridgefill_context);
    }
    return *ctx->ridgefill;
}

//
// llama_context
//

bool llama_context::ridgefill_reserve(uint32_t n_tokens, uint32_t n_seqs, const llama_memory_context_i * mctx) {
    if (!ridgefill || !ridgefill->projector) {
        return true;
    }
    ggml_ridgefill_graphs_take_turns();
    const auto reserve = [&](llama_ridgefill_context::row_class cls) {
        ridgefill->reserving = cls;
        const bool ok = graph_reserve(n_tokens, n_seqs, n_seqs, mctx, model.hparams.no_alloc) != nullptr;
        ridgefill->reserving = llama_ridgefill_context::EXACT;
        return ok;
    };
    ridgefill->can_resume = ridgefill->cache != nullptr;
    if (ridgefill->cache) {
        using rf = llama_ridgefill_context;
        std::vector<rf::row_class> classes = {rf::EARLY, rf::RESUME};
        if (ridgefill->in_order()) {
            classes.push_back(rf::LATE);
            if (n_tokens > n_seqs) {
                classes.push_back(rf::MIXED);
            }
        }
        for (const auto cls : classes) {
            if (!reserve(cls)) {
                return false;
            }
            ridgefill->can_resume = ridgefill->can_resume && ridgefill->outcome.applied;
        }
    }
    return reserve(llama_ridgefill_context::FILL); // last: its outcome is what attach() looks at
}

void llama_context::ridgefill_changed() {
    sched_need_reserve = true;
    sched_reserve();
}

bool llama_context::ridgefill_plain() const {
    for (const auto & [lora, scale] : *loras) {
        if (scale != 0.0f) {
            return false;
        }
    }
    for (uint32_t il = 0; il < model.hparams.n_layer(); ++il) {
        if (cvec->tensor_for((int) il)) {
            return false;
        }
    }
    return true;
}

//
// words
//

int32_t llama_ridgefill_abi(void) {
    return LLAMA_RIDGEFILL_ABI;
}

const char * llama_ridgefill_mode_name(enum llama_ridgefill_mode mode) {
    switch (mode) {
    case LLAMA_RIDGEFILL_MODE_OFF:
        return "off";
    case LLAMA_RIDGEFILL_MODE_PLUMB:
        return "plumb";
    case LLAMA_RIDGEFILL_MODE_SPEED:
        return "speed";
    case LLAMA_RIDGEFILL_MODE_QUALITY:
        return "quality";
    }
    return "unknown";
}

const char * llama_ridgefill_reason_name(enum llama_ridgefill_reason reason) {
    switch (reason) {
    case LLAMA_RIDGEFILL_REASON_NONE:
        return "none";
    case LLAMA_RIDGEFILL_REASON_NO_PROJECTOR:
        return "no_projector";
    case LLAMA_RIDGEFILL_REASON_OFF:
        return "off";
    case LLAMA_RIDGEFILL_REASON_SHORT:
        return "short";
    case LLAMA_RIDGEFILL_REASON_OUTPUTS:
        return "outputs";
    case LLAMA_RIDGEFILL_REASON_ADAPTER:
        return "adapter";
    case LLAMA_RIDGEFILL_REASON_NOT_CAUSAL:
        return "not_causal";
    case LLAMA_RIDGEFILL_REASON_GRAPH:
        return "graph";
    case LLAMA_RIDGEFILL_REASON_NO_PLAN:
        return "no_plan";
    case LLAMA_RIDGEFILL_REASON_MEMORY:
        return "memory";
    case LLAMA_RIDGEFILL_REASON_NO_TABLE:
        return "no_table";
    }
    return "unknown";
}

const char * llama_ridgefill_select_name(enum llama_ridgefill_select select) {
    switch (select) {
    case LLAMA_RIDGEFILL_SELECT_ATTENTION:
        return "attention";
    case LLAMA_RIDGEFILL_SELECT_SPANS:
        return "spans";
    case LLAMA_RIDGEFILL_SELECT_ROWS:
        return "rows";
    case LLAMA_RIDGEFILL_SELECT_CLASS:
        return "class";
    case LLAMA_RIDGEFILL_SELECT_RANDOM:
        return "random";
    case LLAMA_RIDGEFILL_SELECT_ALL:
        return "all";
    }
    return "unknown";
}

bool llama_ridgefill_mode_parse(const char * text, enum llama_ridgefill_mode * mode) {
    for (int i = LLAMA_RIDGEFILL_MODE_OFF; i <= LLAMA_RIDGEFILL_MODE_QUALITY; ++i) {
        if (strcmp(text, llama_ridgefill_mode_name((llama_ridgefill_mode) i)) == 0) {
            *mode = (llama_ridgefill_mode) i;
            return true;
        }
    }
    return false;
}

bool llama_ridgefill_select_parse(const char * text, enum llama_ridgefill_select * select) {
    for (int i = LLAMA_RIDGEFILL_SELECT_ATTENTION; i <= LLAMA_RIDGEFILL_SELECT_ALL; ++i) {
        if (strcmp(text, llama_ridgefill_select_name((llama_ridgefill_select) i)) == 0) {
            *select = (llama_ridgefill_select) i;
            return true;
        }
    }
    return false;
}

struct llama_ridgefill_params llama_ridgefill_default_params(void) {
    return {LLAMA_RIDGEFILL_MODE_SPEED,       /*.n_tail =*/2048, /*.n_head =*/16, /*.n_min_bulk =*/1024,
            LLAMA_RIDGEFILL_SELECT_ATTENTION, /*.share =*/0.13f};
}

//
// projector
//

struct llama_ridgefill_projector * llama_ridgefill_load(
    const struct llama_model * model, const char * path, enum llama_ridgefill_placement placement, char * err,
    size_t err_len
) {
    try {
        return ridgefill_projector_load(*model, path, placement);
    } catch (const std::exception & e) {
        fail(err, err_len, e.what());
        return nullptr;
    }
}

void llama_ridgefill_free(struct llama_ridgefill_projector * projector) {
    delete projector;
}

int32_t llama_ridgefill_split(const struct llama_ridgefill_projector * projector) {
    return projector->split;
}

int32_t llama_ridgefill_n_maps(const struct llama_ridgefill_projector * projector) {
    return (int32_t) projector->maps.maps.size();
}

size_t llama_ridgefill_size(const struct llama_ridgefill_projector * projector) {
    return projector->size;
}

size_t llama_ridgefill_host_size(const struct llama_ridgefill_projector * projector) {
    return projector->host_size;
}

enum llama_ridgefill_target llama_ridgefill_target_of(const struct llama_ridgefill_projector * projector) {
    return projector->target;
}

const char * llama_ridgefill_identity(const struct llama_ridgefill_projector * projector) {
    return projector->identity.c_str();
}

const char * llama_ridgefill_name(const struct llama_ridgefill_projector * projector) {
    return projector->name.c_str();
}

bool llama_ridgefill_native(const struct llama_ridgefill_projector * projector) {
    return projector->native;
}

const char * llama_ridgefill_warning(const struct llama_ridgefill_projector * projector, size_t i) {
    return i < projector->warnings.size() ? projector->warnings[i].c_str() : nullptr;
}

//
// context
//

bool llama_ridgefill_attach(
    struct llama_context * ctx, const struct llama_ridgefill_projector * projector,
    struct llama_ridgefill_params params, char * err, size_t err_len
) {
    if (const char * text = ridgefill_params_check(params)) {
        return fail(err, err_len, std::string("parameter: ") + text);
    }
    if (projector && projector->model != &ctx->get_model()) {
        return fail(err, err_len, "model: the projector was loaded for another model");
    }
    if (projector && !ctx->get_memory()) {
        return fail(err, err_len, "model: this model keeps no cache, there is nothing to fill");
    }

    llama_ridgefill_context & rf = ridgefill_state_of(ctx);
    rf.attach(projector, params);
    rf.find_caches(ctx->get_memory(), ctx->n_seq_max());

    try {
        ctx->ridgefill_changed(); // builds a fill graph, which tries the pass
    } catch (const std::exception & e) {
        rf.projector = nullptr;
        return fail(err, err_len, std::string("memory: ") + e.what());
    }
    if (projector && !rf.outcome.applied) {
        rf.projector = nullptr;
        return fail(err, err_len, "graph: " + rf.outcome.reason);
    }
    if (projector && params.mode == LLAMA_RIDGEFILL_MODE_QUALITY && !rf.can_resume) {
        const bool shared = rf.ring && !rf.cache;
        LLAMA_LOG_WARN(
            "%s: quality mode: found %s, prompts run exactly (reason memory)\n%s: hint: %s\n", __func__,
            shared     ? "sliding windows in a cache of several sequences"
            : rf.cache ? "a graph that cannot be cut"
                       : "a cache whose rows cannot run again",
            __func__, shared ? "use one sequence (-np 1), or mode speed" : "use mode speed"
        );
    }
    return true;
}

const struct llama_ridgefill_projector * llama_ridgefill_attached(const struct llama_context * ctx) {
    return ctx->ridgefill ? ctx->ridgefill->projector : nullptr;
}

struct llama_ridgefill_params llama_ridgefill_get_params(const struct llama_context * ctx) {
    llama_ridgefill_params params = llama_ridgefill_default_params();
    if (llama_ridgefill_attached(ctx)) {
        return ctx->ridgefill->params;
    }
    params.mode = LLAMA_RIDGEFILL_MODE_OFF;
    return params;
}

struct llama_ridgefill_plan llama_ridgefill_prompt(
    struct llama_context * ctx, llama_seq_id seq_id, llama_pos pos_begin, llama_pos pos_end,
    const struct llama_ridgefill_params * overrides
) {
    return ridgefill_state_of(ctx).announce(seq_id, pos_begin, pos_end, overrides);
}

struct llama_ridgefill_plan llama_ridgefill_plan_for(
    const struct llama_context * ctx, llama_pos pos_begin, llama_pos pos_end,
    const struct llama_ridgefill_params * overrides
) {
    static const llama_ridgefill_context none;
    return (ctx->ridgefill ? *ctx->ridgefill : none).plan_for(pos_begin, pos_end, overrides);
}

struct llama_ridgefill_counts llama_ridgefill_get_counts(const struct llama_context * ctx, llama_seq_id seq_id) {
    if (ctx->ridgefill) {
        return ctx->ridgefill->counts(seq_id);
    }
    return {LLAMA_RIDGEFILL_MODE_OFF, LLAMA_RIDGEFILL_REASON_NO_PROJECTOR, 0, 0, 0};
}

bool llama_ridgefill_lost(const struct llama_context * ctx, char * text, size_t len) {
    ggml_backend_dev_t dev = ridgefill_lost_device(ctx->get_sched());
    if (dev) {
        snprintf(text, len, "%s (%s)", ggml_backend_dev_name(dev), ggml_backend_dev_description(dev));
    }
    return dev != nullptr;
}

struct llama_ridgefill_interval llama_ridgefill_filled(const struct llama_context * ctx, llama_seq_id seq_id) {
    return ctx->ridgefill ? ctx->ridgefill->filled(seq_id) : llama_ridgefill_interval{};
}

void llama_ridgefill_set_filled(
    struct llama_context * ctx, llama_seq_id seq_id, struct llama_ridgefill_interval filled
) {
    ridgefill_state_of(ctx).set_filled(seq_id, filled);
}

//
// capture
//

bool llama_ridgefill_capture(
    struct llama_context * ctx, int32_t split, enum llama_ridgefill_target target, const int32_t * layers,
    size_t n_layers, char * err, size_t err_len
) {
    const int32_t n_layer = (int32_t) ctx->get_model().hparams.n_layer();
    if (n_layers > 0 && (split < 1 || split >= n_layer)) {
        return fail(
            err, err_len, "split: found " + std::to_string(split) + ", allowed 1 .. " + std::to_string(n_layer - 1)
        );
    }
    for (size_t i = 0; i < n_layers; ++i) {
        if (layers[i] < -1 || layers[i] >= n_layer) {
            return fail(
                err, err_len,
                "layer: found " + std::to_string(layers[i]) + ", allowed -1 .. " + std::to_string(n_layer - 1)
            );
        }
    }

    auto & rf = ridgefill_state_of(ctx);
    rf.capture = {};
    rf.capture.split = split;
    rf.capture.target = target;
    rf.capture.layers.assign(layers, layers + n_layers);
    rf.capture.width.assign(n_layers, 0);
    rf.capture.rows.resize(n_layers);
    rf.outcome = {};

    try {
        ctx->ridgefill_changed();
    } catch (const std::exception & e) {
        rf.capture = {};
        return fail(err, err_len, std::string("memory: ") + e.what());
    }
    if (n_layers > 0 && !rf.outcome.applied) {
        rf.capture = {};
        return fail(err, err_len, "graph: " + rf.outcome.reason);
    }
    return true;
}

const float * llama_ridgefill_captured(struct llama_context * ctx, size_t i_layer, int32_t * n_rows, int32_t * width) {
    if (!ctx->ridgefill || i_layer >= ctx->ridgefill->capture.layers.size()) {
        return nullptr;
    }
    ctx->synchronize();
    const auto & capture = ctx->ridgefill->capture;
    const auto & rows = capture.rows[i_layer];
    *width = capture.width[i_layer];
    *n_rows = *width > 0 ? (int32_t) (rows.size() / *width) : 0;
    return rows.empty() ? nullptr : rows.data();
}
