#include "ggml-ridgefill-cpu.h"

#include "ggml-cpu-impl.h"
#include "ggml-ridgefill.h"
#include "ridgefill-few.h"
#include "ridgefill-kernel.h"
#include "ridgefill-ref.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

// The op in three steps: every thread rounds and packs a share of x (once per op, or in an op of its own for several
// maps), a barrier, then threads take chunks of the result. In a chunk, codes are packed a few groups at a time and
// meet all rows of the chunk while they are in the L2 cache; the accumulators of one 64 x 64 block stay in L1.

static_assert(RIDGEFILL_GROUP == GGML_RIDGEFILL_GROUP, "one group size");

// GGML_RIDGEFILL_CPU forces a path, for tests and for bisecting. NULL: plain code.
static const ridgefill_kernels * choose_kernels() {
    const ridgefill_kernels * candidates[] = {
        // first available wins
        ridgefill_kernels_amx(),  ridgefill_kernels_avx512vnni(), ridgefill_kernels_avxvnni(),
        ridgefill_kernels_avx2(), ridgefill_kernels_neon(),
    };
    const char * forced = getenv("GGML_RIDGEFILL_CPU");
    if (forced != nullptr && strcmp(forced, "scalar") == 0) {
        return nullptr;
    }
    const ridgefill_kernels * best = nullptr;
    for (const auto * kernels : candidates) {
        if (kernels != nullptr && forced != nullptr && strcmp(forced, kernels->name) == 0) {
            return kernels;
        }
        best = best ? best : kernels;
    }
    if (forced != nullptr && *forced != '\0') {
        GGML_LOG_WARN(
            "ridgefill: GGML_RIDGEFILL_CPU=%s is not available here, using %s\n", forced, best ? best->name : "scalar"
        );
    }
    return best;
}

static const ridgefill_kernels * kernels() {
    static const ridgefill_kernels * chosen = choose_kernels();
    return chosen;
}

static const char * path_in_use() {
    return kernels() ? kernels()->name : "scalar";
}

void * ggml_cpu_ridgefill_proc_address(const char * name) {
    return strcmp(name, "ggml_cpu_ridgefill_path") == 0 ? reinterpret_cast<void *>(path_in_use) : nullptr;
}

bool ggml_cpu_ridgefill_supports(const ggml_tensor * op) {
    return !ggml_ridgefill_disabled() && ggml_ridgefill_form_of(op) != GGML_RIDGEFILL_INVALID;
}

namespace {

int64_t div_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
size_t line_up(size_t n) {
    return (n + 63) / 64 * 64;
}
char * line_up(void * p) {
    return reinterpret_cast<char *>(line_up(reinterpret_cast<size_t>(p)));
}

// how the op comes by its rounded x
bool makes_rounded(const ggml_tensor * op) {
    return op->src[1] == nullptr;
}
bool has_rounded(const ggml_tensor * op) {
    return op->src[3]->type == GGML_TYPE_I8;
}

struct sizes {
    int64_t n_in, n_out, n_rows, n_groups, n_panels;
    int64_t chunk_o, chunk_r; // outputs and rows of a chunk
    int64_t chunk_g;          // groups whose codes are packed at a time
    int64_t n_chunks_r, n_chunks;

    // work memory: packed x, then for each thread packed codes, their scales, accumulators
    size_t x_bytes, codes_bytes, scale_bytes, acc_bytes;

    size_t thread_bytes() const {
        return std::max(codes_bytes + scale_bytes + acc_bytes, line_up(ridgefill_few_bytes(n_groups)));
    }
};

sizes plan(const ggml_tensor * op, int n_threads, int code_size) {
    sizes s = {};
    s.n_in = op->src[0]->ne[0];
    s.n_out = op->src[0]->ne[1];
    s.n_rows = op->ne[1];
    s.n_groups = ggml_ridgefill_n_groups(s.n_in);
    s.n_panels = div_up(s.n_rows, RIDGEFILL_PANEL);

    // 8 groups of a chunk: 256 KiB of codes that stay in L2, 512 KiB of x and as much of accumulators that pass through
    s.chunk_g = std::min<int64_t>(s.n_groups, 8);
    s.chunk_o = 256;
    s.chunk_r = std::min<int64_t>(512, div_up(s.n_rows, RIDGEFILL_BLOCK_R) * RIDGEFILL_BLOCK_R);
    const auto n_chunks = [&] { return div_up(s.n_out, s.chunk_o) * div_up(s.n_rows, s.chunk_r); };
    while (n_chunks() < 5 * n_threads
    ) { // enough for every thread; fewer outputs first, codes are packed once per chunk
        if (s.chunk_o > RIDGEFILL_BLOCK_O) {
            s.chunk_o /= 2;
        } else if (s.chunk_r > RIDGEFILL_BLOCK_R) {
            s.chunk_r = div_up(s.chunk_r, 2 * RIDGEFILL_BLOCK_R) * RIDGEFILL_BLOCK_R;
        } else if (s.chunk_o > 32) {
            s.chunk_o /= 2;
        } else {
            break;
        }
    }
    s.n_chunks_r = div_up(s.n_rows, s.chunk_r);
    s.n_chunks = n_chunks();

    s.x_bytes = s.n_panels * s.n_groups * sizeof(ridgefill_x_group);
    s.codes_bytes = line_up(s.chunk_g * s.chunk_o * RIDGEFILL_GROUP * code_size);
    s.scale_bytes = line_up(s.chunk_g * s.chunk_o * sizeof(float));
    s.acc_bytes = div_up(s.chunk_o, RIDGEFILL_BLOCK_O) * (s.chunk_r / RIDGEFILL_BLOCK_R) * RIDGEFILL_BLOCK_O
                  * RIDGEFILL_BLOCK_R * sizeof(float);
    return s;
}

struct thread_memory {
    char * codes;  // [chunk_g][chunk_o][128]
    float * scale; // [chunk_g][chunk_o]
    float * acc;   // [chunk_r / 64][chunk_o / 64][64][64]
};

int group_inputs(const sizes & s, int64_t g) {
    return int(std::min<int64_t>(RIDGEFILL_GROUP, s.n_in - g * RIDGEFILL_GROUP));
}

void quantize_share(
    const sizes & s, const ridgefill_kernels & k, const ggml_compute_params & params, const ggml_tensor * x,
    ridgefill_x_group * packed
) {
    const int64_t n = s.n_panels * s.n_groups;
    const int64_t begin = n * params.ith / params.nth;
    const int64_t end = n * (params.ith + 1) / params.nth;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = i / s.n_groups * RIDGEFILL_PANEL;
        const int64_t g = i % s.n_groups;
        const auto * from = reinterpret_cast<const float *>(static_cast<const char *>(x->data) + row * x->nb[1]);
        k.quantize(
            from + g * RIDGEFILL_GROUP, x->nb[1] / sizeof(float),
            int(std::min<int64_t>(RIDGEFILL_PANEL, s.n_rows - row)), group_inputs(s, g), packed + i
        );
    }
}

void pack_codes(
    const sizes & s, const ridgefill_kernels & k, const ggml_tensor * dst, int64_t o_begin, int n_o, int64_t g_begin,
    int n_g, const thread_memory & memory
) {
    const auto * codes = static_cast<const int8_t *>(dst->src[0]->data) + o_begin * s.n_in;
    // 16 outputs at a time, so that few pages are read from, each in order
    for (int o = 0; o < n_o; o += 16) {
        for (int g = 0; g < n_g; g++) {
            k.pack(
                codes + o * s.n_in + (g_begin + g) * RIDGEFILL_GROUP, s.n_in, std::min(16, n_o - o),
                group_inputs(s, g_begin + g), memory.codes + (g * s.chunk_o + o) * RIDGEFILL_GROUP * k.code_size
            );
        }
    }
}

void pack_scale(
    const sizes & s, const ggml_tensor * dst, int64_t o_begin, int n_o, int64_t g_begin, int n_g,
    const thread_memory & memory
) {
    const auto * scale = static_cast<const ggml_bf16_t *>(dst->src[1]->data) + o_begin * s.n_groups + g_begin;
    for (int o = 0; o < s.chunk_o; o++) {
        for (int g = 0; g < n_g; g++) {
            memory.scale[g * s.chunk_o + o] = o < n_o ? GGML_BF16_TO_FP32(scale[o * s.n_groups + g]) : 0.0f;
        }
    }
}

void compute_chunk(
    const sizes & s, const ridgefill_kernels & k, int64_t chunk, ggml_tensor * dst, const ridgefill_x_group * x,
    const thread_memory & memory
) {
    const int64_t o_begin = chunk / s.n_chunks_r * s.chunk_o;
    const int64_t r_begin = chunk % s.n_chunks_r * s.chunk_r;
    const int n_o = int(std::min(s.chunk_o, s.n_out - o_begin));
    const int n_r = int(std::min(s.chunk_r, s.n_rows - r_begin));
    const auto * bias = dst->src[2] ? static_cast<const float *>(dst->src[2]->data) + o_begin : nullptr;
    auto * y = static_cast<float *>(dst->data) + r_begin * s.n_out + o_begin;

    // with few rows a code is used once or twice, and packing would cost as much as multiplying
    const bool direct = k.direct && n_r <= 2 * RIDGEFILL_PANEL && n_o % 16 == 0 && s.n_in % 64 == 0;
    const auto * codes = static_cast<const char *>(dst->src[0]->data) + o_begin * s.n_in;

    for (int64_t g_begin = 0; g_begin < s.n_groups; g_begin += s.chunk_g) {
        const int n_g = int(std::min(s.chunk_g, s.n_groups - g_begin));
        if (!direct) {
            pack_codes(s, k, dst, o_begin, n_o, g_begin, n_g, memory);
        }
        pack_scale(s, dst, o_begin, n_o, g_begin, n_g, memory);

        float * acc = memory.acc;
        for (int r = 0; r < n_r; r += RIDGEFILL_BLOCK_R) {
            const int block_r = std::min(RIDGEFILL_BLOCK_R, n_r - r);
            const auto * x_block = x + (r_begin + r) / RIDGEFILL_PANEL * s.n_groups + g_begin;
            for (int o = 0; o < n_o; o += RIDGEFILL_BLOCK_O) {
                const int block_o = std::min(RIDGEFILL_BLOCK_O, n_o - o);
                const int n_panels = int(div_up(block_r, RIDGEFILL_PANEL));
                if (g_begin == 0) {
                    k.start(bias ? bias + o : nullptr, block_o, n_panels, acc);
                }
                ridgefill_block block = {};
                block.codes = direct ? codes + o * s.n_in + g_begin * RIDGEFILL_GROUP
                                     : memory.codes + o * RIDGEFILL_GROUP * k.code_size;
                block.codes_stride = direct ? RIDGEFILL_GROUP : s.chunk_o * RIDGEFILL_GROUP * k.code_size;
                block.codes_row = direct ? s.n_in : RIDGEFILL_GROUP * k.code_size;
                block.scale = memory.scale + o;
                block.scale_stride = s.chunk_o;
                block.n_out = int(div_up(block_o, 16)) * 16;
                block.x = x_block;
                block.x_stride = s.n_groups;
                block.n_panels = n_panels;
                block.n_groups = n_g;
                block.n_last = group_inputs(s, g_begin + n_g - 1);
                block.acc = acc;
                k.multiply(block);
                if (g_begin + n_g == s.n_groups) {
                    k.store(acc, block_o, block_r, y + r * s.n_out + o, s.n_out);
                }
                acc += RIDGEFILL_BLOCK_O * RIDGEFILL_BLOCK_R;
            }
        }
    }
}

void forward_packed(const ggml_compute_params & params, const ridgefill_kernels & k, ggml_tensor * dst) {
    const sizes s = plan(dst, params.nth, k.code_size);

    if (makes_rounded(dst)) {
        quantize_share(s, k, params, dst->src[3], reinterpret_cast<ridgefill_x_group *>(line_up(dst->data)));
        return;
    }
    char * work = line_up(params.wdata);
    auto * x = reinterpret_cast<ridgefill_x_group *>(has_rounded(dst) ? line_up(dst->src[3]->data) : work);
    char * own = work + (has_rounded(dst) ? 0 : s.x_bytes) + params.ith * s.thread_bytes();
    const thread_memory memory = {
        own,
        reinterpret_cast<float *>(own + s.codes_bytes),
        reinterpret_cast<float *>(own + s.codes_bytes + s.scale_bytes),
    };

    if (params.ith == 0) {
        ggml_threadpool_chunk_set(params.threadpool, params.nth);
    }
    if (!has_rounded(dst)) {
        quantize_share(s, k, params, dst->src[3], x);
    }
    ggml_barrier(params.threadpool);

    if (ridgefill_is_few(k, s.n_rows)) {
        ridgefill_few_forward(params, k, dst, x, own);
        return;
    }
    alignas(64) char saved[64];
    if (k.enter) {
        k.enter(saved);
    }
    for (int64_t chunk = params.ith; chunk < s.n_chunks; chunk = ggml_threadpool_chunk_add(params.threadpool, 1)) {
        compute_chunk(s, k, chunk, dst, x, memory);
    }
    if (k.leave) {
        k.leave(saved);
    }
}

void forward_plain(const ggml_compute_params & params, ggml_tensor * dst) {
    const ggml_tensor * x = dst->src[3];
    const int64_t n_in = dst->src[0]->ne[0];
    const int64_t n_out = dst->src[0]->ne[1];
    const int64_t n_rows = dst->ne[1];
    const int64_t n_groups = ggml_ridgefill_n_groups(n_in);

    void * room = makes_rounded(dst) ? dst->data : has_rounded(dst) ? x->data : params.wdata;
    auto * q_scale = reinterpret_cast<float *>(line_up(room));          // [n_rows][n_groups]
    auto * q = reinterpret_cast<int8_t *>(q_scale + n_rows * n_groups); // [n_rows][n_in]

    for (int64_t r = params.ith; r < n_rows && !has_rounded(dst); r += params.nth) {
        const auto * row = reinterpret_cast<const float *>(static_cast<const char *>(x->data) + r * x->nb[1]);
        for (int64_t g = 0; g < n_groups; g++) {
            const int64_t i = g * RIDGEFILL_GROUP;
            q_scale[r * n_groups + g] =
                ridgefill_ref_quantize(row + i, int(std::min<int64_t>(RIDGEFILL_GROUP, n_in - i)), q + r * n_in + i);
        }
    }
    if (makes_rounded(dst)) {
        return;
    }
    ggml_barrier(params.threadpool);

    const auto * codes = static_cast<const int8_t *>(dst->src[0]->data);
    const auto * scale = static_cast<const ggml_bf16_t *>(dst->src[1]->data);
    const auto * bias = dst->src[2] ? static_cast<const float *>(dst->src[2]->data) : nullptr;
    auto * y = static_cast<float *>(dst->data);
    for (int64_t o = params.ith; o < n_out; o += params.nth) {
        for (int64_t r = 0; r < n_rows; r++) {
            y[r * n_out + o] = ridgefill_ref_dot(
                codes + o * n_in, scale + o * n_groups, bias ? bias[o] : 0.0f, q + r * n_in, q_scale + r * n_groups,
                n_in
            );
        }
    }
}

} // namespace

size_t ggml_cpu_ridgefill_work_size(const ggml_tensor * op, int n_threads) {
    // Packed x is never smaller than what the plain path needs. OpenMP may start fewer threads than planned, and fewer
    // threads take larger chunks: room for the worst number.
    size_t bytes = 0;
    if (makes_rounded(op)) {
        return 0;
    }
    for (int n = 1; n <= n_threads; n++) {
        const sizes s = plan(op, n, kernels() ? kernels()->code_size : 1);
        bytes = std::max(bytes, (has_rounded(op) ? 0 : s.x_bytes) + n * s.thread_bytes());
    }
    return bytes + 64;
}

void ggml_cpu_ridgefill_forward(const ggml_compute_params * params, ggml_tensor * dst) {
    if (kernels() == nullptr || params->use_ref) {
        forward_plain(*params, dst);
    } else {
        forward_packed(*params, *kernels(), dst);
    }
}
