#pragma once

// What upstream's Vulkan backend calls (hooks in ggml-vulkan.cpp).

#include "ggml-vulkan-common.h"

bool ggml_vk_ridgefill_supported(const vk_device & device, const ggml_tensor * op);
void ggml_vk_ridgefill(ggml_backend_vk_context * ctx, vk_context & subctx, ggml_tensor * dst);

// True when the environment asks for the integer dot product on a device that has it but does not call it fast: the
// backend then enables it, as tests on a software device need.
bool ggml_vk_ridgefill_forces_dot();

// One shader of the op with its tile, as upstream's function that creates pipelines takes it.
struct vk_ridgefill_shader {
    int slot; // in vk_device_struct::pipeline_ridgefill
    const char * name;
    size_t spv_size;
    const void * spv_data;
    uint32_t n_bindings;
    uint32_t push_constant_size;
    std::array<uint32_t, 3> wg_denoms; // outputs and rows of a workgroup
    std::vector<uint32_t> constants;
    uint32_t subgroup_size; // 0: any
};

// Those that this device can run.
std::vector<vk_ridgefill_shader> ggml_vk_ridgefill_shaders(const vk_device & device);

template <typename create_pipeline>
void ggml_vk_ridgefill_create_pipelines(vk_device & device, const create_pipeline & create) {
    for (const vk_ridgefill_shader & s : ggml_vk_ridgefill_shaders(device)) {
        create(
            device, device->pipeline_ridgefill[s.slot], s.name, s.spv_size, s.spv_data, "main", s.n_bindings,
            s.push_constant_size, s.wg_denoms, s.constants, 1, true, s.subgroup_size != 0, s.subgroup_size
        );
    }
}
