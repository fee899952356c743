#pragma once

// Small random models of every architecture, from the pinned upstream's own fixture, made deep enough that there is
// something to fill: upstream's have two layers, where these have eight.

#include "../common/common.h" // by folder: ggml-cpu has a common.h too

// upstream's test is compiled in for its fixture; its main stays unused
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#define main upstream_test_main
#include "../tests/test-llama-archs.cpp"
#undef main
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include <set>
#include <string>
#include <vector>

namespace archs {

constexpr uint32_t N_LAYER = 8;

// Layers whose number the architecture's code fixes.
inline bool keeps_depth(llm_arch arch) {
    return arch == LLM_ARCH_GEMMA3N || arch == LLM_ARCH_HRM_TEXT;
}

inline bool encodes_first(llm_arch arch) {
    return arch == LLM_ARCH_T5;
}

// Upstream's test leaves these out; the keys that their models need are added in add_missing_keys.
inline bool is_added(llm_arch arch) {
    switch (arch) {
    case LLM_ARCH_GEMMA4:
    case LLM_ARCH_RWKV6:
    case LLM_ARCH_RWKV7:
    case LLM_ARCH_ARWKV7:
        return true;
    default:
        return false;
    }
}

inline const char * skip_reason(llm_arch arch) {
    switch (arch) {
    case LLM_ARCH_EAGLE3:
    case LLM_ARCH_DFLASH:
    case LLM_ARCH_GEMMA4_ASSISTANT:
        return "a drafter, runs beside another model";
    case LLM_ARCH_BERT:
    case LLM_ARCH_MODERN_BERT:
    case LLM_ARCH_NOMIC_BERT:
    case LLM_ARCH_NOMIC_BERT_MOE:
    case LLM_ARCH_NEO_BERT:
    case LLM_ARCH_JINA_BERT_V2:
    case LLM_ARCH_JINA_BERT_V3:
    case LLM_ARCH_EUROBERT:
    case LLM_ARCH_T5ENCODER:
    case LLM_ARCH_LLAMA_EMBED:
    case LLM_ARCH_GEMMA_EMBEDDING:
        return "an encoder, keeps no cache";
    case LLM_ARCH_CLIP:
    case LLM_ARCH_WAVTOKENIZER_DEC:
        return "no language model";
    case LLM_ARCH_GPTJ:
        return "upstream cannot run it";
    case LLM_ARCH_RWKV6QWEN2:
        return "no fixture: upstream's graph refuses the small random model";
    default:
        return arch_supported(arch) || is_added(arch) ? nullptr : "no fixture";
    }
}

inline void add_missing_keys(llm_arch arch, gguf_context * g) {
    const auto key = [&](const char * name) { return std::string(llm_arch_name(arch)) + "." + name; };
    if (arch == LLM_ARCH_GEMMA4) {
        const uint8_t swa[N_LAYER] = {1, 1, 1, 1, 0, 1, 0, 0};
        gguf_remove_key(g, key("attention.sliding_window_pattern").c_str());
        gguf_set_arr_data(g, key("attention.sliding_window_pattern").c_str(), GGUF_TYPE_BOOL, swa, N_LAYER);
        gguf_set_val_u32(g, key("attention.shared_kv_layers").c_str(), 1); // the last layer writes no cache of its own
    }
    if (arch == LLM_ARCH_RWKV7 || arch == LLM_ARCH_ARWKV7) {
        for (const char * rank : {"decay", "iclr", "value_residual_mix", "gate"}) {
            gguf_set_val_u32(g, key(("attention." + std::string(rank) + "_lora_rank").c_str()).c_str(), 32);
        }
    }
    if (arch == LLM_ARCH_ARWKV7) {
        gguf_set_val_u32(g, key("token_shift_count").c_str(), 1);
    }
}

// Repeats a per-layer array up to n values.
inline void extend_array(gguf_context * g, const std::string & key, int64_t id, size_t n) {
    const gguf_type type = gguf_get_arr_type(g, id);
    const size_t size = type == GGUF_TYPE_UINT64 ? 8 : type == GGUF_TYPE_BOOL ? 1 : 4;
    const size_t n_old = gguf_get_arr_n(g, id);
    const uint8_t * old = (const uint8_t *) gguf_get_arr_data(g, id);
    std::vector<uint8_t> data;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t * v = old + i % n_old * size;
        data.insert(data.end(), v, v + size);
    }
    gguf_set_arr_data(g, key.c_str(), type, data.data(), n);
}

// The fixture's keys with more layers: per-layer arrays go on as they began.
inline gguf_context_ptr make_keys(llm_arch arch, bool moe) {
    gguf_context_ptr g = get_gguf_ctx(arch, moe);
    if (arch == LLM_ARCH_BAILINGMOE3) {
        gguf_remove_key(g.get(), "bailingmoe3.kda.safe_gate"); // as upstream's test does
    }
    if (keeps_depth(arch)) {
        return g;
    }
    const std::string prefix = std::string(llm_arch_name(arch)) + ".";
    const std::string depth = prefix + "block_count";
    const uint32_t n_old = gguf_get_val_u32(g.get(), gguf_find_key(g.get(), depth.c_str()));
    std::vector<std::string> per_layer;
    for (int64_t id = 0; id < gguf_get_n_kv(g.get()); ++id) {
        const std::string key = gguf_get_key(g.get(), id);
        if (gguf_get_kv_type(g.get(), id) == GGUF_TYPE_ARRAY && gguf_get_arr_type(g.get(), id) != GGUF_TYPE_STRING
            && gguf_get_arr_n(g.get(), id) == n_old && key.rfind(prefix, 0) == 0
            && key.find("dimension_sections") == std::string::npos && key.find(".ple.") == std::string::npos) {
            per_layer.push_back(key);
        }
    }
    for (const std::string & key : per_layer) {
        extend_array(g.get(), key, gguf_find_key(g.get(), key.c_str()), N_LAYER);
    }
    gguf_set_val_u32(g.get(), depth.c_str(), N_LAYER);
    add_missing_keys(arch, g.get());
    return g;
}

inline llama_model_ptr make_model(gguf_context * keys, size_t seed = 1234) {
    tensor_data_params data = {seed, 0.1f};
    llama_model_params params = llama_model_default_params();
    params.progress_callback = silent_model_load_progress;
    return llama_model_ptr(llama_model_init_from_user(keys, set_tensor_data, &data, params));
}

inline llama_model_ptr make_model(llm_arch arch, bool moe) {
    gguf_context_ptr g = make_keys(arch, moe);
    return make_model(g.get());
}

// name, dense or MoE
struct entry {
    llm_arch arch;
    bool moe;
    std::string name;
};

inline std::vector<entry> all() {
    std::vector<entry> res;
    for (const llm_arch & arch : llm_arch_all()) {
        if (arch == LLM_ARCH_UNKNOWN) {
            continue;
        }
        for (const bool moe : {false, true}) {
            if (moe ? moe_implemented(arch) : !moe_mandatory(arch)) {
                const bool both = moe_implemented(arch) && !moe_mandatory(arch);
                res.push_back({arch, moe, std::string(llm_arch_name(arch)) + (both && moe ? "-moe" : "")});
            }
        }
    }
    return res;
}

} // namespace archs
