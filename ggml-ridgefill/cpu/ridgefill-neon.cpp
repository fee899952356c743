#include "ridgefill-kernel.h"

#if defined(__aarch64__) && defined(__GNUC__)

#include <arm_neon.h>

#include <cmath>
#include <cstring>

#ifdef __linux__
#include <sys/auxv.h>
#endif

#ifdef __clang__
#define RIDGEFILL_DOTPROD __attribute__((target("dotprod")))
#else
#define RIDGEFILL_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

namespace {

constexpr int GROUP = RIDGEFILL_GROUP;
constexpr int PANEL = RIDGEFILL_PANEL;

bool has_dotprod() {
#if defined(__ARM_FEATURE_DOTPROD) || defined(__APPLE__)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & (1 << 20)) != 0; // HWCAP_ASIMDDP
#else
    return false;
#endif
}

void quantize(const float * x, size_t stride, int n_rows, int n, ridgefill_x_group * out) {
    memset(out, 0, sizeof(*out));
    for (int r = 0; r < PANEL; r++) {
        out->scale[r] = 1.0f;
    }
    for (int r = 0; r < n_rows; r++) {
        const float * row = x + r * stride;
        // absmax as an integer maximum of the bits without sign: a NaN or an infinity wins over every finite number
        uint32x4_t top = vdupq_n_u32(0);
        for (int i = 0; i < n; i += 4) {
            top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(row + i)), vdupq_n_u32(0x7fffffff)));
        }
        const uint32_t bits = vmaxvq_u32(top);
        float absmax;
        memcpy(&absmax, &bits, 4);
        const float inverse = 127.0f / absmax;
        const bool finite = bits < 0x7f800000;
        if (!finite || inverse == INFINITY) { // see ridgefill_ref_quantize
            out->scale[r] = finite ? 1.0f : NAN;
            continue;
        }
        out->scale[r] = absmax / 127.0f;
        for (int i = 0; i < n; i += 16) {
            int32x4_t part[4];
            for (int j = 0; j < 4; j++) {
                part[j] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(row + i + 4 * j), inverse)); // half to even
            }
            const int16x8_t low = vcombine_s16(vqmovn_s32(part[0]), vqmovn_s32(part[1]));
            const int16x8_t high = vcombine_s16(vqmovn_s32(part[2]), vqmovn_s32(part[3]));
            const int8x16_t q = vcombine_s8(vqmovn_s16(low), vqmovn_s16(high));
            out->sum[r] += vaddlvq_s8(q);
            int8_t quads[16];
            vst1q_s8(quads, q);
            for (int k = 0; k < 4; k++) {
                memcpy(out->q[i / 4 + k][r], quads + 4 * k, 4);
            }
        }
    }
}

void pack(const int8_t * codes, size_t stride, int n_out, int n, void * out) {
    auto * to = static_cast<int8_t *>(out);
    memset(to, 0, size_t(n_out + 15) / 16 * 16 * GROUP);
    for (int o = 0; o < n_out; o++) {
        memcpy(to + o * GROUP, codes + o * stride, size_t(n));
    }
}

void start(const float * bias, int n_out, int n_panels, float * acc) {
    for (int p = 0; p < n_panels; p++) {
        for (int o = 0; o < n_out; o++) {
            for (int r = 0; r < PANEL; r += 4) {
                vst1q_f32(acc + ridgefill_acc_index(o, p) + r, vdupq_n_f32(bias ? bias[o] : 0.0f));
            }
        }
    }
}

// 4 outputs by one panel: 16 sums, each of 4 rows. LANE is the quad of codes within 16.
template <int LANE>
RIDGEFILL_DOTPROD inline void
multiply_quad(int32x4_t (&dot)[4][4], const int8x16_t (&c)[4], const int8_t (&q)[PANEL][4]) {
    for (int j = 0; j < 4; j++) {
        const int8x16_t rows = vld1q_s8(q[4 * j]);
        for (int i = 0; i < 4; i++) {
            dot[i][j] = vdotq_laneq_s32(dot[i][j], rows, c[i], LANE);
        }
    }
}

RIDGEFILL_DOTPROD void
multiply_group(const int8_t * codes, const float * scale, int n_out, const ridgefill_x_group & x, int n, float * acc) {
    for (int o = 0; o < n_out; o += 4) {
        int32x4_t dot[4][4];
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < 4; j++) {
                dot[i][j] = vdupq_n_s32(0);
            }
        }
        for (int k = 0; k < n; k += 16) {
            int8x16_t c[4];
            for (int i = 0; i < 4; i++) {
                c[i] = vld1q_s8(codes + (o + i) * GROUP + k);
            }
            multiply_quad<0>(dot, c, x.q[k / 4 + 0]);
            multiply_quad<1>(dot, c, x.q[k / 4 + 1]);
            multiply_quad<2>(dot, c, x.q[k / 4 + 2]);
            multiply_quad<3>(dot, c, x.q[k / 4 + 3]);
        }
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < 4; j++) {
                float * a = acc + (o % 32 + i) * PANEL + 4 * j;
                const float32x4_t s = vmulq_n_f32(vld1q_f32(x.scale + 4 * j), scale[o + i]);
                vst1q_f32(a, vfmaq_f32(vld1q_f32(a), s, vcvtq_f32_s32(dot[i][j])));
            }
        }
    }
}

void multiply(const ridgefill_block & b) {
    for (int g = 0; g < b.n_groups; g++) {
        const int n = g + 1 == b.n_groups ? b.n_last : GROUP;
        for (int p = 0; p < b.n_panels; p++) {
            for (int o = 0; o < b.n_out; o += 32) { // accumulators of 32 outputs are contiguous
                const auto * codes = reinterpret_cast<const int8_t *>(b.codes + g * b.codes_stride + o * GROUP);
                multiply_group(
                    codes, b.scale + g * b.scale_stride + o, b.n_out - o < 32 ? b.n_out - o : 32,
                    b.x[p * b.x_stride + g], n, b.acc + ridgefill_acc_index(o, p)
                );
            }
        }
    }
}

void store(const float * acc, int n_out, int n_rows, float * y, size_t stride) {
    for (int r = 0; r < n_rows; r += 4) {
        for (int o = 0; o < n_out; o += 4) {
            const float * from = acc + ridgefill_acc_index(o, r / PANEL) + r % PANEL;
            float32x4x4_t in;
            for (int i = 0; i < 4; i++) {
                in.val[i] = vld1q_f32(from + i * PANEL);
            }
            float rows[16];
            vst4q_f32(rows, in); // interleaves: rows[4*r + o]
            for (int i = 0; i < 4 && r + i < n_rows; i++) {
                memcpy(y + (r + i) * stride + o, rows + 4 * i, (n_out - o < 4 ? n_out - o : 4) * sizeof(float));
            }
        }
    }
}

} // namespace

const ridgefill_kernels * ridgefill_kernels_neon() {
    static const ridgefill_kernels kernels = {
        "neon", 1, false, nullptr, nullptr, quantize, pack, start, multiply, store, nullptr,
    };
    static const bool usable = has_dotprod();
    return usable ? &kernels : nullptr;
}

#else

const ridgefill_kernels * ridgefill_kernels_neon() {
    return nullptr;
}

#endif
