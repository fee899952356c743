#include "llama-ridgefill-inputs.h"

void ridgefill_input::set_input(const llama_ubatch * ubatch) {
    const int64_t n_rows = ubatch->n_tokens;
    std::vector<float> data;
    switch (what) {
    case ROWS:
        data.resize((size_t) ggml_nelements(t));
        from->source_rows(*ubatch, ggml_nelements(t) / n_rows, data.data());
        break;
    case WEIGHTS:
        data.resize((size_t) (t->ne[0] * n_rows));
        from->query_weights(*ubatch, data.data());
        break;
    case FILLED:
        data.assign((size_t) n_rows, 1.0f);
        for (const int32_t i : from->exact_rows(*ubatch)) {
            data[(size_t) i] = 0.0f;
        }
        break;
    }
    for (int64_t h = 0; h < (what == WEIGHTS ? t->ne[2] : 1); ++h) { // every head weighs alike
        ggml_backend_tensor_set(t, data.data(), (size_t) h * t->nb[2], data.size() * sizeof(float));
    }
}

ggml_tensor * ridgefill_new_input(ggml_context * ctx, const ggml_tensor * like, const char * name) {
    ggml_tensor * t = ggml_new_tensor(ctx, like->type, GGML_MAX_DIMS, like->ne);
    ggml_set_name(t, name);
    ggml_set_input(t);
    return t;
}
