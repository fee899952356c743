#include "ridgefill-x86.h"

#ifdef RIDGEFILL_X86

#include <cmath>
#include <cstring>

namespace {

constexpr int GROUP = RIDGEFILL_GROUP;
constexpr int PANEL = RIDGEFILL_PANEL;

// out[j][i] = in[i][j], 16 x 16 words of 32 bits
RIDGEFILL_AVX512 inline void transpose(const __m512i in[16], __m512i out[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i + 0] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i + 0] = _mm512_unpacklo_epi64(a[i + 0], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i + 0], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    // b[4*i + j] holds columns j, j+4, j+8, j+12 of rows 4*i .. 4*i+3
    for (int j = 0; j < 4; j++) {
        const __m512i lo01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        const __m512i hi01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        const __m512i lo23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        const __m512i hi23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        out[j + 0] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
        out[j + 4] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
        out[j + 8] = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
        out[j + 12] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
    }
}

RIDGEFILL_AVX512 void pack(const int8_t * codes, size_t stride, int n_out, int n, void * out) {
    // vpdpbusd multiplies unsigned by signed bytes: codes are stored as code + 128, multiply takes 128 * sum(q) off
    // again
    const __m512i flip = _mm512_set1_epi8(char(0x80));
    auto * to = static_cast<char *>(out);
    for (int o = 0; o < n_out; o++) {
        for (int i = 0; i < GROUP; i += 64) {
            const __mmask64 mask = n - i >= 64 ? ~0ull : n > i ? (1ull << (n - i)) - 1 : 0;
            _mm_prefetch((const char *) codes + (o + 16) * stride + i, _MM_HINT_T0); // see ridgefill-few-avx512.cpp
            const __m512i c = _mm512_maskz_loadu_epi8(mask, codes + o * stride + i);
            _mm512_store_si512(to + o * GROUP + i, _mm512_xor_si512(c, flip));
        }
    }
    for (int o = n_out; o % 16 != 0; o++) {
        memset(to + o * GROUP, 0, GROUP);
    }
}

// one group; NO outputs by NP panels in registers
template <int NO, int NP>
RIDGEFILL_AVX512 void multiply_group(
    const char * codes, const float * scale, int n_out, const ridgefill_x_group * x, size_t x_stride, int n, float * acc
) {
    __m512i start[NP]; // -128 * sum(q)
    __m512 x_scale[NP];
    for (int p = 0; p < NP; p++) {
        const __m512i sum = _mm512_load_si512(x[p * x_stride].sum);
        start[p] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
        x_scale[p] = _mm512_load_ps(x[p * x_stride].scale);
    }
    for (int o = 0; o < n_out; o += NO) {
        __m512i dot[NO][NP];
        for (int i = 0; i < NO; i++) {
            for (int p = 0; p < NP; p++) {
                dot[i][p] = start[p];
            }
        }
        for (int k = 0; k < n / 4; k++) {
            __m512i q[NP];
            for (int p = 0; p < NP; p++) {
                q[p] = _mm512_load_si512(x[p * x_stride].q[k]);
            }
            for (int i = 0; i < NO; i++) {
                int word;
                memcpy(&word, codes + (o + i) * GROUP + 4 * k, 4);
                const __m512i c = _mm512_set1_epi32(word);
                for (int p = 0; p < NP; p++) {
                    dot[i][p] = ridgefill_avx512_dot4(dot[i][p], c, q[p]);
                }
            }
        }
        for (int i = 0; i < NO; i++) {
            const __m512 s = _mm512_set1_ps(scale[o + i]);
            for (int p = 0; p < NP; p++) {
                float * a = acc + ridgefill_acc_index(o + i, p);
                _mm512_store_ps(
                    a, _mm512_fmadd_ps(_mm512_mul_ps(s, x_scale[p]), _mm512_cvtepi32_ps(dot[i][p]), _mm512_load_ps(a))
                );
            }
        }
    }
}

void multiply(const ridgefill_block & b) {
    for (int g = 0; g < b.n_groups; g++) {
        const int n = g + 1 == b.n_groups ? b.n_last : GROUP;
        const char * codes = b.codes + g * b.codes_stride;
        const float * scale = b.scale + g * b.scale_stride;
        switch (b.n_panels) {
        case 1:
            multiply_group<16, 1>(codes, scale, b.n_out, b.x + g, b.x_stride, n, b.acc);
            break;
        case 2:
            multiply_group<8, 2>(codes, scale, b.n_out, b.x + g, b.x_stride, n, b.acc);
            break;
        case 3:
            multiply_group<4, 3>(codes, scale, b.n_out, b.x + g, b.x_stride, n, b.acc);
            break;
        case 4:
            multiply_group<4, 4>(codes, scale, b.n_out, b.x + g, b.x_stride, n, b.acc);
            break;
        }
    }
}

} // namespace

RIDGEFILL_AVX512 void
ridgefill_avx512_quantize(const float * x, size_t stride, int n_rows, int n, ridgefill_x_group * out) {
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    alignas(64) int8_t rows[PANEL][GROUP];
    for (int r = 0; r < PANEL; r++) {
        __m512 v[8]; // a group of a row: read once, rows may lie 4 KiB apart and push each other out of the cache
        for (int i = 0; i < 8; i++) {
            v[i] = r < n_rows && 16 * i < n ? _mm512_loadu_ps(x + r * stride + 16 * i) : _mm512_setzero_ps();
        }
        // absmax as an integer maximum of the bits without sign: a NaN or an infinity wins over every finite number
        __m512i top = _mm512_and_si512(_mm512_castps_si512(v[0]), no_sign);
        for (int i = 1; i < 8; i++) {
            top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_castps_si512(v[i]), no_sign));
        }
        const uint32_t bits = _mm512_reduce_max_epu32(top);
        float absmax;
        memcpy(&absmax, &bits, 4);
        const float inverse = 127.0f / absmax;
        const bool finite = bits < 0x7f800000;
        const bool nonzero = finite && inverse < INFINITY; // see ridgefill_ref_quantize
        out->scale[r] = nonzero ? absmax / 127.0f : finite ? 1.0f : NAN;

        const __mmask16 mask = nonzero ? 0xffff : 0;
        const __m512 by = _mm512_set1_ps(inverse);
        __m512i q[8];
        for (int i = 0; i < 8; i++) {
            q[i] = _mm512_cvtps_epi32(_mm512_maskz_mul_ps(mask, v[i], by));
        }
        for (int h = 0; h < 2; h++) {
            _mm512_store_si512(
                &rows[r][64 * h],
                _mm512_packs_epi16(
                    _mm512_packs_epi32(q[4 * h + 0], q[4 * h + 1]), _mm512_packs_epi32(q[4 * h + 2], q[4 * h + 3])
                )
            );
        }
    }

    __m512i sum = _mm512_setzero_si512();
    for (int h = 0; h < 2; h++) {
        __m512i in[16], quads[16];
        for (int r = 0; r < 16; r++) {
            in[r] = _mm512_load_si512(&rows[r][64 * h]);
        }
        transpose(in, quads);
        for (int k = 0; k < 16; k++) {
            // the packs left inputs 16*j + 4*lane .. + 3 in quad 4*lane + j
            _mm512_store_si512(out->q[16 * h + k % 4 * 4 + k / 4], quads[k]);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), quads[k]);
        }
    }
    _mm512_store_si512(out->sum, sum);
}

RIDGEFILL_AVX512 void ridgefill_avx512_start(const float * bias, int n_out, int n_panels, float * acc) {
    for (int p = 0; p < n_panels; p++) {
        for (int o = 0; o < n_out; o++) {
            _mm512_store_ps(acc + ridgefill_acc_index(o, p), _mm512_set1_ps(bias ? bias[o] : 0.0f));
        }
    }
}

RIDGEFILL_AVX512 void ridgefill_avx512_store(const float * acc, int n_out, int n_rows, float * y, size_t stride) {
    for (int r = 0; r < n_rows; r += 4) {
        for (int o = 0; o < n_out; o += 16) {
            const __mmask16 mask = n_out - o >= 16 ? 0xffff : (1 << (n_out - o)) - 1;
            // four rows of y: lane by lane from memory, then 4 x 4 within the lanes
            const float * from = acc + ridgefill_acc_index(o, r / PANEL) + r % PANEL;
            __m512 in[4];
            for (int i = 0; i < 4; i++) {
                in[i] = _mm512_castps128_ps512(_mm_load_ps(from + i * PANEL));
                in[i] = _mm512_insertf32x4(in[i], _mm_load_ps(from + (i + 4) * PANEL), 1);
                in[i] = _mm512_insertf32x4(in[i], _mm_load_ps(from + (i + 8) * PANEL), 2);
                in[i] = _mm512_insertf32x4(in[i], _mm_load_ps(from + (i + 12) * PANEL), 3);
            }
            const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(in[0], in[1]));
            const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(in[0], in[1]));
            const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(in[2], in[3]));
            const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(in[2], in[3]));
            const __m512d rows[4] = {
                _mm512_unpacklo_pd(a, c),
                _mm512_unpackhi_pd(a, c),
                _mm512_unpacklo_pd(b, d),
                _mm512_unpackhi_pd(b, d),
            };
            for (int i = 0; i < 4 && r + i < n_rows; i++) {
                _mm512_mask_storeu_ps(y + (r + i) * stride + o, mask, _mm512_castpd_ps(rows[i]));
            }
        }
    }
}

const ridgefill_kernels * ridgefill_kernels_avx512vnni() {
    static const ridgefill_kernels kernels = {
        "avx512vnni",
        1,
        false,
        nullptr,
        nullptr,
        ridgefill_avx512_quantize,
        pack,
        ridgefill_avx512_start,
        multiply,
        ridgefill_avx512_store,
        ridgefill_avx512_few,
    };
    return ridgefill_x86().avx512vnni ? &kernels : nullptr;
}

#else

const ridgefill_kernels * ridgefill_kernels_avx512vnni() {
    return nullptr;
}

#endif
