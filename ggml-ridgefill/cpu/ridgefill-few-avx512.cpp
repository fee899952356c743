#include "ridgefill-x86.h"

#ifdef RIDGEFILL_X86

#include <algorithm>
#include <cstring>

namespace {

constexpr int GROUP = RIDGEFILL_GROUP;

// the sums of four vectors
RIDGEFILL_AVX512 inline __m128i sums(const __m512i v[4]) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

// 4 outputs (those beyond n_out repeat the last) by R rows, all groups
template <int R>
RIDGEFILL_AVX512 void four(const ridgefill_few & f, int o, int row) {
    const int last = f.n_out - 1;
    const int8_t * codes[4];
    const uint16_t * scale[4];
    float bias[4];
    for (int i = 0; i < 4; i++) {
        const int at = std::min(o + i, last);
        codes[i] = f.codes + at * f.n_in;
        scale[i] = f.scale + at * f.n_groups;
        bias[i] = f.bias ? f.bias[at] : 0.0f;
    }
    __m128 y[R];
    for (int r = 0; r < R; r++) {
        y[r] = _mm_loadu_ps(bias);
    }
    // unsigned codes (code + 128) by signed x, 128 * sum(x) taken off, as where codes are packed
    const __m512i flip = _mm512_set1_epi8(char(0x80));
    for (int64_t g = 0; g < f.n_groups; g++) {
        const int64_t n = std::min<int64_t>(GROUP, f.n_in - g * GROUP);
        const __mmask64 mask[2] = {
            n >= 64 ? ~0ull : (1ull << n) - 1, n == GROUP ? ~0ull
                                               : n > 64   ? (1ull << (n - 64)) - 1
                                                          : 0};
        // rows of codes may be pages: the processor's own prefetching starts anew in each
        for (int i = 0; i < 4 && row == 0; i++) {
            const char * next = (const char *) (codes[i] + 4 * f.n_in + g * GROUP);
            _mm_prefetch(next, _MM_HINT_T0);
            _mm_prefetch(next + 64, _MM_HINT_T0);
        }
        __m512i c[4][2];
        for (int i = 0; i < 4; i++) {
            for (int h = 0; h < 2; h++) {
                c[i][h] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask[h], codes[i] + g * GROUP + 64 * h), flip);
            }
        }
        const __m128i bits = _mm_setr_epi32(scale[0][g], scale[1][g], scale[2][g], scale[3][g]);
        const __m128 s = _mm_castsi128_ps(_mm_slli_epi32(bits, 16));
        for (int r = 0; r < R; r++) {
            const int64_t at = (row + r) * f.n_groups + g;
            const __m512i q0 = _mm512_loadu_si512(f.q + at * GROUP);
            const __m512i q1 = _mm512_loadu_si512(f.q + at * GROUP + 64);
            __m512i dot[4];
            for (int i = 0; i < 4; i++) {
                dot[i] = ridgefill_avx512_dot4(_mm512_setzero_si512(), c[i][0], q0);
                dot[i] = ridgefill_avx512_dot4(dot[i], c[i][1], q1);
            }
            const __m128i exact = _mm_sub_epi32(sums(dot), _mm_set1_epi32(128 * f.q_sum[at]));
            y[r] = _mm_fmadd_ps(_mm_mul_ps(s, _mm_set1_ps(f.q_scale[at])), _mm_cvtepi32_ps(exact), y[r]);
        }
    }
    for (int r = 0; r < R; r++) {
        float out[4];
        _mm_storeu_ps(out, y[r]);
        memcpy(f.y + (row + r) * f.y_stride + o, out, std::min(4, f.n_out - o) * sizeof(float));
    }
}

} // namespace

RIDGEFILL_AVX512 void ridgefill_avx512_few(const ridgefill_few & f) {
    for (int o = 0; o < f.n_out; o += 4) {
        for (int r = 0; r < f.n_rows; r += 4) { // the second time the codes are in the cache
            switch (f.n_rows - r) {
            case 1:
                four<1>(f, o, r);
                break;
            case 2:
                four<2>(f, o, r);
                break;
            case 3:
                four<3>(f, o, r);
                break;
            default:
                four<4>(f, o, r);
                break;
            }
        }
    }
}

#endif
