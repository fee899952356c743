// The op on NVIDIA and AMD devices: x is quantised, once per op or once for several maps (ggml_ridgefill_round), then one of
// four paths multiplies.
//   vec     up to 4 rows, bound by memory
//   tile    any device, the tensor cores or dot products that it has
//   hopper  compute capability 9.0, more than 32 rows
//   cublas  a yardstick, never chosen by itself

#include "ridgefill.cuh"

#include "ggml-ridgefill.h"
#include "ridgefill-cublas.cuh"
#include "ridgefill-hopper.cuh"
#include "ridgefill-quantize.cuh"
#include "ridgefill-tile.cuh"
#include "ridgefill-vec.cuh"

static_assert(RIDGEFILL_GROUP == GGML_RIDGEFILL_GROUP, "one group size");

enum ridgefill_path { RIDGEFILL_PATH_VEC, RIDGEFILL_PATH_TILE, RIDGEFILL_PATH_HOPPER, RIDGEFILL_PATH_CUBLAS, RIDGEFILL_PATH_COUNT };

// GGML_RIDGEFILL_CUDA forces a path where it can run, for tests and for bisecting. COUNT: not forced.
static ridgefill_path ridgefill_forced_path() {
    static const ridgefill_path forced = [] {
        const char * names[RIDGEFILL_PATH_COUNT] = { "vec", "tile", "hopper", "cublas" };
        const char * value = getenv("GGML_RIDGEFILL_CUDA");
        int path = 0;
        while (path < RIDGEFILL_PATH_COUNT && !(value && strcmp(value, names[path]) == 0)) {
            path++;
        }
        if (value && *value && path == RIDGEFILL_PATH_COUNT) {
            GGML_LOG_WARN("ridgefill: GGML_RIDGEFILL_CUDA=%s is not one of vec, tile, hopper, cublas\n", value);
        }
        return ridgefill_path(path);
    }();
    return forced;
}

static ridgefill_path ridgefill_choose_path(const ridgefill_problem & p, int cc) {
    const bool vec    = p.n_rows <= RIDGEFILL_VEC_MAX_ROWS;
    const bool hopper = cc == GGML_CUDA_CC_HOPPER && ridgefill_hopper_built();
    const bool few    = p.n_rows <= 32; // the small tiles fill the device better
    switch (ridgefill_forced_path()) {
        case RIDGEFILL_PATH_TILE:   return RIDGEFILL_PATH_TILE;
        case RIDGEFILL_PATH_CUBLAS: return RIDGEFILL_PATH_CUBLAS;
        case RIDGEFILL_PATH_HOPPER: return hopper ? RIDGEFILL_PATH_HOPPER : RIDGEFILL_PATH_TILE;
        default:                    return vec ? RIDGEFILL_PATH_VEC : hopper && !few ? RIDGEFILL_PATH_HOPPER : RIDGEFILL_PATH_TILE;
    }
}

bool ggml_cuda_ridgefill_supported(int device, const ggml_tensor * op) {
    GGML_UNUSED(device);
    const ggml_ridgefill_form form = ggml_ridgefill_form_of(op);
    // the yardstick multiplies in bf16: there is nothing to round once
    const bool apart = form == GGML_RIDGEFILL_ROUND || form == GGML_RIDGEFILL_ROUNDED;
    if (ggml_ridgefill_disabled() || form == GGML_RIDGEFILL_INVALID || (apart && ridgefill_forced_path() == RIDGEFILL_PATH_CUBLAS)) {
        return false;
    }
    // kernels index a tile with 32 bits, and a grid has 65535 places along the groups
    const auto fits = [](int64_t n, int64_t end) { return n > 0 && n < end; };
    return fits(op->src[0]->ne[0], 1 << 23) && fits(op->src[0]->ne[1], 1 << 23) && fits(op->ne[1], 1 << 30);
}

// How quantised x lies in memory, in a tensor or in work memory.
static size_t ridgefill_place_x(const ridgefill_problem & p, char * at, ridgefill_quantized & x) {
    const auto line_up = [](size_t bytes) { return (bytes + 255)/256*256; };
    x.scale_stride = (p.n_rows + 15)/16*16;
    const size_t q_bytes     = line_up(size_t(p.n_rows)*p.n_groups*RIDGEFILL_GROUP);
    const size_t scale_bytes = line_up((size_t(x.scale_stride)*p.n_groups + 256)*sizeof(float)); // a tile reads past the end
    x.q     = reinterpret_cast<int8_t *>(at);
    x.scale = reinterpret_cast<float *>(at + q_bytes);
    return q_bytes + scale_bytes;
}

// Quantised x, made here unless a tensor holds it, and `n_sums` floats for sums that blocks share.
struct ridgefill_work {
    ridgefill_work(ggml_cuda_pool & pool, const ridgefill_problem & p, char * rounded, size_t n_sums, cudaStream_t stream) : memory(pool) {
        const size_t x_bytes = rounded ? 0 : ridgefill_place_x(p, nullptr, x);
        char * at = memory.alloc(x_bytes + n_sums*sizeof(float) + 1); // never nothing
        ridgefill_place_x(p, rounded ? rounded : at, x);
        sums = reinterpret_cast<float *>(at + x_bytes);
        if (!rounded) {
            ridgefill_quantize(p, x, stream);
        }
    }

    ggml_cuda_pool_alloc<char> memory;
    ridgefill_quantized x;
    float             * sums;
};

void ggml_cuda_op_ridgefill(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * codes = dst->src[0];
    const ggml_tensor * scale = dst->src[1];
    const ggml_tensor * bias  = dst->src[2];
    const ggml_tensor * x     = dst->src[3];
    GGML_ASSERT(reinterpret_cast<uintptr_t>(codes->data) % 16 == 0); // rows are multiples of 32 bytes

    const bool round = scale == nullptr;
    char * rounded = static_cast<char *>(round ? dst->data : x->type == GGML_TYPE_I8 ? x->data : nullptr);
    GGML_ASSERT(reinterpret_cast<uintptr_t>(rounded) % 16 == 0);

    ridgefill_problem p = {};
    p.codes    = static_cast<const int8_t *>(codes->data);
    p.scale    = round ? nullptr : static_cast<const uint16_t *>(scale->data);
    p.bias     = bias ? static_cast<const float *>(bias->data) : nullptr;
    p.x        = static_cast<const float *>(x->data);
    p.x_stride = x->nb[1]/sizeof(float);
    p.y        = static_cast<float *>(dst->data);
    p.n_in     = codes->ne[0];
    p.n_out    = codes->ne[1];
    p.n_rows   = dst->ne[1];
    p.n_groups = ggml_ridgefill_n_groups(p.n_in);

    const auto & device = ggml_cuda_info().devices[ctx.device];
    cudaStream_t stream = ctx.stream();

    if (round) {
        ridgefill_quantized to;
        GGML_ASSERT(ridgefill_place_x(p, rounded, to) <= ggml_nbytes(dst));
        ridgefill_quantize(p, to, stream);
        CUDA_CHECK(cudaGetLastError());
        return;
    }
    switch (ridgefill_choose_path(p, device.cc)) {
        case RIDGEFILL_PATH_VEC: {
            ridgefill_work work(ctx.pool(), p, rounded, 0, stream);
            ridgefill_vec(p, work.x, stream);
        } break;
        case RIDGEFILL_PATH_HOPPER: {
            const ridgefill_hopper_plan plan = ridgefill_hopper_choose(p, device.nsm);
            ridgefill_work work(ctx.pool(), p, rounded, plan.sums, stream);
            GGML_ASSERT(ridgefill_hopper(p, work.x, work.sums, plan, stream));
        } break;
        case RIDGEFILL_PATH_CUBLAS: {
            ridgefill_cublas(ctx, p);
        } break;
        default: {
            const ridgefill_tile_plan plan = ridgefill_tile_choose(p, device.nsm);
            ridgefill_work work(ctx.pool(), p, rounded, plan.parts > 1 ? size_t(plan.parts)*p.n_rows*p.n_out : 0, stream);
            const bool async = GGML_CUDA_CC_IS_NVIDIA(device.cc) && device.cc >= GGML_CUDA_CC_AMPERE;
            ridgefill_tile(p, work.x, { plan.parts, work.sums }, plan, async, stream);
        } break;
    }
    CUDA_CHECK(cudaGetLastError());
}
