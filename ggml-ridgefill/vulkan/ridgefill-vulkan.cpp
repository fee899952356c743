// The op on Vulkan devices: x is rounded, once per op or once for several maps (ggml_ridgefill_round), then one of the
// product's variants multiplies. All give the same bits.
//   plain    every device, fp16 operands where it has them, otherwise fp32
//   dot      integer dot product
//   coopmat  cooperative matrices, int8 where the device has those, otherwise fp16

#include "ridgefill-vulkan.h"

#include "ggml-ridgefill.h"

namespace {

enum ridgefill_variant {
    RIDGEFILL_PLAIN,
    RIDGEFILL_DOT,
    RIDGEFILL_COOPMAT,
    RIDGEFILL_COOPMAT_FP16,
    RIDGEFILL_VARIANT_COUNT
};
const char * variant_names[RIDGEFILL_VARIANT_COUNT] = {"plain", "dot", "coopmat", "coopmat-fp16"};

// Places in vk_device_struct::pipeline_ridgefill: the rounding, then the tiles of each variant.
enum ridgefill_tile { TILE_SMALL, TILE_MEDIUM, TILE_LARGE, TILE_COUNT };
constexpr int SLOT_ROUND = 0;
int slot_of(ridgefill_variant variant, ridgefill_tile tile) {
    return 1 + TILE_COUNT * variant + tile;
}
constexpr int SLOT_COUNT = 1 + TILE_COUNT * RIDGEFILL_VARIANT_COUNT;
static_assert(SLOT_COUNT <= std::extent_v<decltype(vk_device_struct::pipeline_ridgefill)>);

// GGML_RIDGEFILL_VULKAN forces a variant where it can run, for tests and for bisecting. COUNT: not forced.
ridgefill_variant forced_variant() {
    static const ridgefill_variant forced = [] {
        const char * value = getenv("GGML_RIDGEFILL_VULKAN");
        int variant = 0;
        while (variant < RIDGEFILL_VARIANT_COUNT && !(value && strcmp(value, variant_names[variant]) == 0)) {
            variant++;
        }
        if (value && *value && variant == RIDGEFILL_VARIANT_COUNT) {
            GGML_LOG_WARN("ridgefill: GGML_RIDGEFILL_VULKAN=%s is not one of", value);
            for (const char * name : variant_names) {
                GGML_LOG_CONT(" %s", name);
            }
            GGML_LOG_CONT("\n");
        }
        return ridgefill_variant(variant);
    }();
    return forced;
}

struct round_constants {
    uint32_t n_in, n_rows, n_groups, x_stride, x_offset, q_offset, scale_offset;
};

struct mul_constants {
    uint32_t n_in, n_out, n_rows, n_groups, codes_offset, scale_offset, bias_offset, has_bias, q_offset, q_scale_offset,
        y_offset;
};

// Rounded x: codes [row][group][128], then scales [group][row]; codes fill whole groups, so the scales are aligned.
uint32_t rounded_codes_bytes(int64_t n_in, int64_t n_rows) {
    return uint32_t(n_rows * ggml_ridgefill_n_groups(n_in) * GGML_RIDGEFILL_GROUP);
}

uint32_t rounded_bytes(int64_t n_in, int64_t n_rows) {
    return rounded_codes_bytes(n_in, n_rows) + uint32_t(n_rows * ggml_ridgefill_n_groups(n_in) * sizeof(float));
}

ridgefill_variant choose_variant(const vk_device & device, int64_t n_rows) {
    const auto built = [&](ridgefill_variant v) {
        return device->pipeline_ridgefill[slot_of(v, TILE_SMALL)]
               && device->pipeline_ridgefill[slot_of(v, TILE_MEDIUM)];
    };
    const ridgefill_variant forced = forced_variant();
    if (forced != RIDGEFILL_VARIANT_COUNT && built(forced)) {
        return forced;
    }
    if (n_rows >= 32) { // fewer leave most of a matrix empty
        for (ridgefill_variant v : {RIDGEFILL_COOPMAT, RIDGEFILL_COOPMAT_FP16}) {
            if (built(v)) {
                return v;
            }
        }
    }
    return device->integer_dot_product ? RIDGEFILL_DOT : RIDGEFILL_PLAIN;
}

// The largest tile of which there is one for every core; few rows would leave most of it empty.
ridgefill_tile choose_tile(const vk_device & device, ridgefill_variant variant, int64_t n_out, int64_t n_rows) {
    const bool matrices = variant >= RIDGEFILL_COOPMAT;
    if (n_rows <= (matrices ? 32 : 16)) {
        return TILE_SMALL;
    }
    if (!matrices) {
        return TILE_MEDIUM;
    }
    for (ridgefill_tile tile : {TILE_LARGE, TILE_MEDIUM}) {
        const vk_pipeline & pipeline = device->pipeline_ridgefill[slot_of(variant, tile)];
        if (pipeline) {
            const int64_t m = pipeline->wg_denoms[0], n = pipeline->wg_denoms[1];
            if ((n_out + m - 1) / m * ((n_rows + n - 1) / n) >= device->shader_core_count) {
                return tile;
            }
        }
    }
    return TILE_SMALL;
}

// A forced variant may not be there: once per shader, say which one runs.
void log_forced(int slot, const vk_pipeline & pipeline) {
    static std::atomic<uint32_t> logged{0};
    const uint32_t bit = 1u << slot;
    if (forced_variant() != RIDGEFILL_VARIANT_COUNT && !(logged.fetch_or(bit) & bit)) {
        GGML_LOG_INFO("ridgefill: %s multiplies\n", pipeline->name.c_str());
    }
}

// A tensor with the distance from where its descriptor may begin, in units of the shader's view of it.
struct bound {
    bound(const ggml_backend_vk_context * ctx, const ggml_tensor * t, uint32_t unit)
        : buffer(ggml_vk_tensor_subbuffer(ctx, t, true)), offset(get_misalign_bytes(ctx, t) / unit) {
        GGML_ASSERT(get_misalign_bytes(ctx, t) % unit == 0);
    }
    vk_subbuffer buffer;
    uint32_t offset;
};

} // namespace

bool ggml_vk_ridgefill_forces_dot() {
    return forced_variant() == RIDGEFILL_DOT;
}

std::vector<vk_ridgefill_shader> ggml_vk_ridgefill_shaders(const vk_device & device) {
    std::vector<vk_ridgefill_shader> shaders;
    shaders.push_back(
        {SLOT_ROUND,
         "ridgefill_round",
         ridgefill_round_len,
         ridgefill_round_data,
         3,
         sizeof(round_constants),
         {4, 1, 1},
         {},
         0}
    );

    const auto add = [&](ridgefill_variant variant, ridgefill_tile tile, const char * name, size_t size,
                         const void * data, uint32_t bm, uint32_t bn, const std::vector<uint32_t> & constants,
                         uint32_t subgroup_size) {
        shaders.push_back(
            {slot_of(variant, tile), name, size, data, 6, sizeof(mul_constants), {bm, bn, 1}, constants, subgroup_size}
        );
    };
    const auto add_tiles = [&](ridgefill_variant variant, const char * name, size_t size, const void * data) {
        // block size, then a workgroup's outputs and rows, then an invocation's
        add(variant, TILE_MEDIUM, name, size, data, 128, 64, {256, 128, 64, 8, 4}, 0);
        add(variant, TILE_SMALL, name, size, data, 64, 16, {128, 64, 16, 4, 2}, 0);
    };
    if (device->fp16) {
        add_tiles(RIDGEFILL_PLAIN, "ridgefill_mul", ridgefill_mul_len, ridgefill_mul_data);
    } else {
        add_tiles(RIDGEFILL_PLAIN, "ridgefill_mul_fp32", ridgefill_mul_fp32_len, ridgefill_mul_fp32_data);
    }
#if defined(GGML_VULKAN_INTEGER_DOT_GLSLC_SUPPORT)
    const bool has_dot = device->integer_dot_product;
    if (has_dot) {
        add_tiles(RIDGEFILL_DOT, "ridgefill_mul_int_dot", ridgefill_mul_int_dot_len, ridgefill_mul_int_dot_data);
    }
#else
    const bool has_dot = false;
#endif
    if (!has_dot) { // when forced
        add_tiles(RIDGEFILL_DOT, "ridgefill_mul_int", ridgefill_mul_int_len, ridgefill_mul_int_data);
    }

#if defined(GGML_VULKAN_COOPMAT_GLSLC_SUPPORT)
    const auto add_coopmat = [&](ridgefill_variant variant, const char * name, size_t size, const void * data,
                                 uint32_t tm, uint32_t tn, uint32_t tk) {
        if (tm == 0) {
            return;
        }
        // as upstream's products do: matrices of Intel's devices belong to their smallest subgroup
        const bool smallest = device->vendor_id == VK_VENDOR_ID_INTEL && device->subgroup_size_control;
        const uint32_t warp = smallest ? device->subgroup_min_size : device->subgroup_size;
        const uint32_t unit = variant == RIDGEFILL_COOPMAT ? 1 : 2; // bytes of an operand
        // bm outputs by bn rows a workgroup, wm by wn of them a subgroup, bytes of each in shared memory at a time
        const auto add_tile = [&](ridgefill_tile tile, uint32_t bm, uint32_t bn, uint32_t wm, uint32_t wn,
                                  uint32_t bytes) {
            const auto & limits = device->properties.limits;
            const uint32_t subgroups = bm / wm * (bn / wn);
            const uint32_t shared = (bm + bn) * (bytes + 16) + (2 * bm + bn + subgroups * tm * tn) * sizeof(float);
            if (wm % tm || wn % tn || bytes % (tk * unit) || tk * unit % 8 || shared > limits.maxComputeSharedMemorySize
                || subgroups * warp > limits.maxComputeWorkGroupInvocations) {
                return;
            }
            const std::vector<uint32_t> constants = {subgroups * warp, bm, bn, wm, wn, tm, tn, tk, bytes / unit / 4};
            add(variant, tile, name, size, data, bm, bn, constants, warp);
        };
        if (device->vendor_id == VK_VENDOR_ID_NVIDIA) { // measured (docs/kernels.md)
            add_tile(TILE_LARGE, 128, 128, 64, 32, 128);
            add_tile(TILE_MEDIUM, 64, 64, 32, 32, 128);
            add_tile(TILE_SMALL, 64, 32, 32, 16, 128);
        } else { // a guess
            add_tile(TILE_MEDIUM, 128, 64, 64, 32, 64);
            add_tile(TILE_SMALL, 128, 32, 64, 32, 64);
        }
    };
    if (device->coopmat_support) {
        if (device->coopmat_int_support) {
            add_coopmat(
                RIDGEFILL_COOPMAT, "ridgefill_mul_int8_cm1", ridgefill_mul_int8_cm1_len, ridgefill_mul_int8_cm1_data,
                device->coopmat_int_m, device->coopmat_int_n, device->coopmat_int_k
            );
        }
        if (device->coopmat_acc_f32_support) {
            add_coopmat(
                RIDGEFILL_COOPMAT_FP16, "ridgefill_mul_cm1", ridgefill_mul_cm1_len, ridgefill_mul_cm1_data,
                device->coopmat_m, device->coopmat_n, device->coopmat_k
            );
        }
    }
#endif
    return shaders;
}

bool ggml_vk_ridgefill_supported(const vk_device & device, const ggml_tensor * op) {
    if (ggml_ridgefill_disabled() || ggml_ridgefill_form_of(op) == GGML_RIDGEFILL_INVALID) {
        return false;
    }
    // shaders index with 32 bits, and a grid has 65535 places along the rows
    const uint64_t end = std::min<uint64_t>(device->properties.limits.maxStorageBufferRange, device->max_buffer_size);
    const int64_t n_in = op->src[0]->ne[0], n_out = op->src[0]->ne[1], n_rows = op->ne[1];
    bool fits = n_in > 0 && n_out > 0 && n_rows > 0 && n_rows < (1 << 20) && ggml_nbytes(op) <= end
                && ggml_ridgefill_rounded_size(n_in, n_rows) <= end;
    for (const ggml_tensor * src : op->src) {
        fits = fits && (src == nullptr || ggml_nbytes(src) <= end);
    }
    return fits;
}

static void round_x(
    ggml_backend_vk_context * ctx, vk_context & subctx, const ggml_tensor * x, int64_t n_in,
    const vk_subbuffer & rounded, uint32_t rounded_offset
) {
    const bound b_x(ctx, x, sizeof(float));
    round_constants pc = {};
    pc.n_in = uint32_t(n_in);
    pc.n_rows = uint32_t(x->ne[1]);
    pc.n_groups = uint32_t(ggml_ridgefill_n_groups(n_in));
    pc.x_stride = uint32_t(x->nb[1] / sizeof(float));
    pc.x_offset = b_x.offset;
    pc.q_offset = rounded_offset / 4;
    pc.scale_offset = (rounded_offset + rounded_codes_bytes(n_in, x->ne[1])) / sizeof(float);

    vk_pipeline & pipeline = ctx->device->pipeline_ridgefill[SLOT_ROUND];
    ggml_pipeline_request_descriptor_sets(ctx, pipeline, 1);
    ggml_vk_dispatch_pipeline(
        ctx, subctx, pipeline, {b_x.buffer, rounded, rounded}, pc,
        {pc.n_groups, std::min<uint32_t>(pc.n_rows, ctx->device->properties.limits.maxComputeWorkGroupCount[1]), 1}
    );
}

void ggml_vk_ridgefill(ggml_backend_vk_context * ctx, vk_context & subctx, ggml_tensor * dst) {
    const ggml_tensor * codes = dst->src[0];
    const ggml_tensor * scale = dst->src[1];
    const ggml_tensor * bias = dst->src[2];
    const ggml_tensor * x = dst->src[3];
    const int64_t n_in = codes->ne[0], n_rows = dst->ne[1];

    const bound b_dst(ctx, dst, sizeof(float));
    if (scale == nullptr) {
        round_x(ctx, subctx, x, n_in, b_dst.buffer, b_dst.offset * sizeof(float));
        return;
    }

    const bool apart = x->type == GGML_TYPE_I8;
    vk_subbuffer rounded;
    uint32_t rounded_offset = 0;
    if (apart) {
        const bound b_rounded(ctx, x, 16);
        rounded = b_rounded.buffer;
        rounded_offset = b_rounded.offset * 16;
    } else {
        const size_t size = rounded_bytes(n_in, n_rows);
        if (ctx->prealloc_size_x < size) {
            ctx->prealloc_size_x = size;
            ggml_vk_preallocate_buffers(ctx, subctx);
        }
        if (ctx->prealloc_x_need_sync) {
            ggml_vk_sync_buffers(ctx, subctx);
        }
        rounded = {ctx->prealloc_x, 0, size};
        round_x(ctx, subctx, x, n_in, rounded, 0);
        ggml_vk_sync_buffers(ctx, subctx);
        ctx->prealloc_x_need_sync = true;
    }

    const bound b_codes(ctx, codes, 16), b_scale(ctx, scale, sizeof(uint16_t));
    const bound b_bias(ctx, bias ? bias : scale, bias ? sizeof(float) : sizeof(uint16_t)); // a binding is never empty
    mul_constants pc = {};
    pc.n_in = uint32_t(n_in);
    pc.n_out = uint32_t(codes->ne[1]);
    pc.n_rows = uint32_t(n_rows);
    pc.n_groups = uint32_t(ggml_ridgefill_n_groups(n_in));
    pc.codes_offset = b_codes.offset;
    pc.scale_offset = b_scale.offset;
    pc.bias_offset = b_bias.offset;
    pc.has_bias = bias != nullptr;
    pc.q_offset = rounded_offset / 16;
    pc.q_scale_offset = (rounded_offset + rounded_codes_bytes(n_in, n_rows)) / sizeof(float);
    pc.y_offset = b_dst.offset;

    const ridgefill_variant variant = choose_variant(ctx->device, n_rows);
    const ridgefill_tile tile = choose_tile(ctx->device, variant, pc.n_out, n_rows);
    vk_pipeline & pipeline = ctx->device->pipeline_ridgefill[slot_of(variant, tile)];
    log_forced(slot_of(variant, tile), pipeline);
    ggml_pipeline_request_descriptor_sets(ctx, pipeline, 1);
    ggml_vk_dispatch_pipeline(
        ctx, subctx, pipeline, {b_codes.buffer, b_scale.buffer, b_bias.buffer, rounded, rounded, b_dst.buffer}, pc,
        {pc.n_out, pc.n_rows, 1}
    );
}
