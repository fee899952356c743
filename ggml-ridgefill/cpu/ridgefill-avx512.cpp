#include "ridgefill-x86.h"

#ifdef RIDGEFILL_X86

#include <cstring>

namespace {

constexpr int GROUP   = RIDGEFILL_GROUP;
constexpr int PANEL   = RIDGEFILL_PANEL;
constexpr int BLOCK_R = RIDGEFILL_BLOCK_R;

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
        out[j + 0]  = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
        out[j + 4]  = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
        out[j + 8]  = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
        out[j + 12] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
    }
}

RIDGEFILL_AVX512 void pack(const int8_t * codes, size_t stride, int n_out, int n, void * out) {
    // vpdpbusd multiplies unsigned by signed bytes: codes are stored as code + 128, multiply takes 128 * sum(q) off again
    const __m512i flip = _mm512_set1_epi8(char(0x80));
    auto * to = static_cast<char *>(out);
    for (int o = 0; o < n_out; o++) {
        for (int i = 0; i < GROUP; i += 64) {
            const __mmask64 mask = n - i >= 64 ? ~0ull : n > i ? (1ull << (n - i)) - 1 : 0;
            const __m512i   c    = _mm512_maskz_loadu_epi8(mask, codes + o*stride + i);
            _mm512_store_si512(to + o*GROUP + i, _mm512_xor_si512(c, flip));
        }
    }
    for (int o = n_out; o % 16 != 0; o++) {
        memset(to + o*GROUP, 0, GROUP);
    }
}

// NO outputs by NP panels in registers
template <int NO, int NP>
RIDGEFILL_AVX512 void multiply_panels(const char * codes, const float * scale, int n_out,
                                      const ridgefill_x_group * x, size_t x_stride, int n, float * acc) {
    __m512i start[NP]; // -128 * sum(q)
    __m512  x_scale[NP];
    for (int p = 0; p < NP; p++) {
        const __m512i sum = _mm512_load_si512(x[p*x_stride].sum);
        start[p]   = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
        x_scale[p] = _mm512_load_ps(x[p*x_stride].scale);
    }
    for (int o = 0; o < n_out; o += NO) {
        __m512i dot[NO][NP];
        for (int i = 0; i < NO; i++) {
            for (int p = 0; p < NP; p++) {
                dot[i][p] = start[p];
            }
        }
        for (int k = 0; k < n/4; k++) {
            __m512i q[NP];
            for (int p = 0; p < NP; p++) {
                q[p] = _mm512_load_si512(x[p*x_stride].q[k]);
            }
            for (int i = 0; i < NO; i++) {
                int word;
                memcpy(&word, codes + (o + i)*GROUP + 4*k, 4);
                const __m512i c = _mm512_set1_epi32(word);
                for (int p = 0; p < NP; p++) {
                    dot[i][p] = _mm512_dpbusd_epi32(dot[i][p], c, q[p]);
                }
            }
        }
        for (int i = 0; i < NO; i++) {
            const __m512 s = _mm512_set1_ps(scale[o + i]);
            for (int p = 0; p < NP; p++) {
                float * a = acc + (o + i)*BLOCK_R + p*PANEL;
                _mm512_store_ps(a, _mm512_fmadd_ps(_mm512_mul_ps(s, x_scale[p]), _mm512_cvtepi32_ps(dot[i][p]),
                                                   _mm512_load_ps(a)));
            }
        }
    }
}

void multiply(const void * codes, const float * scale, int n_out,
              const ridgefill_x_group * x, size_t x_stride, int n_panels, int n, float * acc) {
    const auto * c = static_cast<const char *>(codes);
    switch (n_panels) {
        case 1: return multiply_panels<16, 1>(c, scale, n_out, x, x_stride, n, acc);
        case 2: return multiply_panels< 8, 2>(c, scale, n_out, x, x_stride, n, acc);
        case 3: return multiply_panels< 8, 3>(c, scale, n_out, x, x_stride, n, acc);
        case 4: return multiply_panels< 4, 4>(c, scale, n_out, x, x_stride, n, acc);
    }
}

} // namespace

RIDGEFILL_AVX512 void ridgefill_avx512_quantize(const float * x, size_t stride, int n_rows, int n, ridgefill_x_group * out) {
    // absmax as an integer maximum of the bits without sign: a NaN or an infinity wins over every finite number
    alignas(64) uint32_t absmax[PANEL] = {};
    for (int r = 0; r < n_rows; r++) {
        __m512i m = _mm512_setzero_si512();
        for (int i = 0; i < n; i += 16) {
            m = _mm512_max_epu32(m, _mm512_and_si512(_mm512_loadu_si512(x + r*stride + i), _mm512_set1_epi32(0x7fffffff)));
        }
        absmax[r] = _mm512_reduce_max_epu32(m);
    }
    const __m512i   bits     = _mm512_load_si512(absmax);
    const __m512    top      = _mm512_castsi512_ps(bits);
    const __m512    inverse  = _mm512_div_ps(_mm512_set1_ps(127.0f), top);
    const __m512    infinity = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000));
    const __mmask16 finite   = _mm512_cmplt_epu32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 nonzero  = _mm512_mask_cmp_ps_mask(finite, inverse, infinity, _CMP_LT_OQ);
    __m512 scale = _mm512_mask_div_ps(_mm512_set1_ps(1.0f), nonzero, top, _mm512_set1_ps(127.0f));
    scale = _mm512_mask_mov_ps(_mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)), finite, scale);
    _mm512_store_ps(out->scale, scale);
    alignas(64) float inverses[PANEL];
    _mm512_store_ps(inverses, _mm512_maskz_mov_ps(nonzero, inverse));

    alignas(64) int8_t rows[PANEL][GROUP] = {};
    for (int r = 0; r < n_rows; r++) {
        const __m512 by = _mm512_set1_ps(inverses[r]);
        for (int i = 0; i < n; i += 16) {
            const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + r*stride + i), by));
            _mm_store_si128((__m128i *) &rows[r][i], _mm512_cvtepi32_epi8(q)); // NaN * 0 becomes 0x80000000, its low byte 0
        }
    }

    __m512i sum = _mm512_setzero_si512();
    for (int half = 0; half < 2; half++) {
        __m512i in[16], quads[16];
        for (int r = 0; r < 16; r++) {
            in[r] = _mm512_load_si512(&rows[r][64*half]);
        }
        transpose(in, quads);
        for (int k = 0; k < 16; k++) {
            _mm512_store_si512(out->q[16*half + k], quads[k]);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), quads[k]);
        }
    }
    _mm512_store_si512(out->sum, sum);
}

RIDGEFILL_AVX512 void ridgefill_avx512_store(const float * acc, int n_out, int n_rows, float * y, size_t stride) {
    for (int o = 0; o < n_out; o += 16) {
        const __mmask16 mask = n_out - o >= 16 ? 0xffff : (1 << (n_out - o)) - 1;
        for (int r = 0; r < n_rows; r += 16) {
            __m512i in[16], out[16];
            for (int i = 0; i < 16; i++) {
                in[i] = _mm512_load_si512(acc + (o + i)*BLOCK_R + r);
            }
            transpose(in, out);
            for (int i = 0; i < 16 && r + i < n_rows; i++) {
                _mm512_mask_storeu_epi32(y + (r + i)*stride + o, mask, out[i]);
            }
        }
    }
}

const ridgefill_kernels * ridgefill_kernels_avx512vnni() {
    static const ridgefill_kernels kernels = {
        "avx512vnni", 1, nullptr, nullptr, ridgefill_avx512_quantize, pack, multiply, ridgefill_avx512_store,
    };
    return ridgefill_x86().avx512vnni ? &kernels : nullptr;
}

#else

const ridgefill_kernels * ridgefill_kernels_avx512vnni() { return nullptr; }

#endif
