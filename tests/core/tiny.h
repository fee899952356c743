#pragma once

// Small random models, so that the core can be tested without a download: a llama, a qwen35 with recurrent layers, a
// gemma3 with sliding windows.
// Head size 64: quantised caches are rotated from there on.

#include "llama-cpp.h"

#include "ggml-backend.h"
#include "gguf.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace core {

inline void fill_random(ggml_tensor * t, void * seed) {
    std::mt19937 rng((uint32_t) (std::hash<std::string>()(t->name) ^ *(const uint32_t *) seed));
    std::normal_distribution<float> dist;
    // norms around one, matrices so that a layer changes its input about as much as its size
    const bool norm = t->ne[1] == 1;
    const float scale = norm ? 0.1f : 1.0f / std::sqrt((float) t->ne[0]);
    std::vector<float> v((size_t) ggml_nelements(t));
    for (float & x : v) {
        x = (norm ? 1.0f : 0.0f) + scale * dist(rng);
    }
    ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
}

// The keys that both models have.
struct tiny_keys {
    gguf_context_ptr gguf{gguf_init_empty()};
    std::string arch;

    tiny_keys(const char * arch, uint32_t n_layer, float epsilon) : arch(arch) {
        gguf_set_val_str(gguf.get(), "general.architecture", arch);
        gguf_set_val_str(gguf.get(), "tokenizer.ggml.model", "no_vocab");
        u32("vocab_size", 256);
        u32("context_length", 1024);
        u32("embedding_length", 128);
        u32("block_count", n_layer);
        u32("feed_forward_length", 192);
        u32("attention.head_count", 2);
        u32("attention.head_count_kv", 1);
        gguf_set_val_f32(gguf.get(), key("attention.layer_norm_rms_epsilon").c_str(), epsilon);
    }

    std::string key(const char * name) const { return arch + "." + name; }
    void u32(const char * name, uint32_t v) { gguf_set_val_u32(gguf.get(), key(name).c_str(), v); }

    llama_model_ptr make(void (*fill)(ggml_tensor *, void *), uint32_t seed) {
        return llama_model_ptr(llama_model_init_from_user(gguf.get(), fill, &seed, llama_model_default_params()));
    }
};

inline llama_model_ptr make_tiny_llama(uint32_t n_layer = 6, uint32_t seed = 1) {
    tiny_keys k("llama", n_layer, 1e-5f);
    k.u32("rope.dimension_count", 64);
    return k.make(fill_random, seed);
}

// Windows of 32 rows, full attention at every sixth layer.
inline llama_model_ptr make_tiny_window(uint32_t n_layer = 9, uint32_t seed = 1) {
    tiny_keys k("gemma3", n_layer, 1e-6f);
    k.u32("attention.key_length", 64);
    k.u32("attention.value_length", 64);
    k.u32("attention.sliding_window", 32);
    return k.make(fill_random, seed);
}

// the decay of a recurrent state must be below one
inline void fill_random_hybrid(ggml_tensor * t, void * seed) {
    fill_random(t, seed);
    if (std::string(t->name).find("ssm_a") != std::string::npos && t->ne[1] == 1) {
        std::vector<float> v((size_t) ggml_nelements(t));
        for (size_t i = 0; i < v.size(); ++i) {
            v[i] = -0.02f * (float) (i + 1);
        }
        ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
    }
}

// Gated DeltaNet layers with full attention at every fourth; two key heads and four value heads, so their order
// matters.
inline llama_model_ptr make_tiny_hybrid(uint32_t n_layer = 8, uint32_t seed = 1) {
    tiny_keys k("qwen35", n_layer, 1e-6f);
    k.u32("attention.key_length", 64);
    k.u32("attention.value_length", 64);
    k.u32("rope.dimension_count", 32);
    const int32_t sections[] = {6, 5, 5, 0};
    gguf_set_arr_data(k.gguf.get(), "qwen35.rope.dimension_sections", GGUF_TYPE_INT32, sections, 4);
    k.u32("full_attention_interval", 4);
    k.u32("ssm.conv_kernel", 4);
    k.u32("ssm.state_size", 64);
    k.u32("ssm.group_count", 2);
    k.u32("ssm.time_step_rank", 4);
    k.u32("ssm.inner_size", 256);
    return k.make(fill_random_hybrid, seed);
}

} // namespace core
