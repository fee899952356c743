// The C API of recurrent states: the correction's scale, states for its fit, and the parts that tell where it stands.

#include "llama-ridgefill-context.h"
#include "llama-ridgefill-correction.h"
#include "llama-ridgefill-projector.h"

#include "llama-context.h"

int32_t llama_ridgefill_n_states(const struct llama_ridgefill_projector * projector) {
    return (int32_t) projector->states.size();
}

bool llama_ridgefill_set_alpha(struct llama_context * ctx, float alpha) {
    if (!(alpha >= 0.0f && alpha <= 1.0f)) {
        return false;
    }
    ridgefill_state_of(ctx).alpha = alpha;
    return true;
}

float llama_ridgefill_alpha(const struct llama_context * ctx) {
    return ctx->ridgefill ? ctx->ridgefill->alpha : 1.0f;
}

size_t llama_ridgefill_parts(
    const struct llama_context * ctx, llama_seq_id seq_id, struct llama_ridgefill_interval * parts, size_t n_max
) {
    const ridgefill_marks * marks = ctx->ridgefill ? ctx->ridgefill->marks(seq_id) : nullptr;
    size_t n = 0;
    for (const ridgefill_part & p : marks ? marks->all() : std::vector<ridgefill_part>()) {
        if (p.begin < p.end) {
            if (n < n_max) {
                parts[n] = {p.begin, p.end, p.mode};
            }
            n++;
        }
    }
    return n;
}

void llama_ridgefill_set_parts(
    struct llama_context * ctx, llama_seq_id seq_id, const struct llama_ridgefill_interval * parts, size_t n_parts
) {
    ridgefill_state_of(ctx).set_parts(seq_id, parts, n_parts);
}

void llama_ridgefill_cut(struct llama_context * ctx, llama_seq_id seq_id, llama_pos pos) {
    if (ctx->ridgefill) {
        ctx->ridgefill->cut(seq_id, pos);
    }
}

size_t llama_ridgefill_state(struct llama_context * ctx, llama_seq_id seq_id, int32_t il, float * dst, size_t n_max) {
    const llama_memory_recurrent * memory = ridgefill_recurrent(ctx->get_memory());
    if (!memory) {
        return 0;
    }
    ctx->synchronize();
    const size_t n = ridgefill_state_get(*memory, seq_id, il, dst, n_max);
    return ridgefill_device_lost(ctx->get_sched()) ? 0 : n;
}
