#include "ridgefill-x86.h"

#ifdef RIDGEFILL_X86

#include <algorithm>
#include <cstring>

namespace {

constexpr int GROUP = RIDGEFILL_GROUP;

// the sums of four vectors
RIDGEFILL_AVX2 inline __m128i sums(const __m256i v[4]) {
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

// 4 outputs (those beyond n_out repeat the last) by one row, all groups
struct outputs {
    const int8_t * codes[4];
    const uint16_t * scale[4];
    float bias[4];

    outputs(const ridgefill_few & f, int o) {
        for (int i = 0; i < 4; i++) {
            const int at = std::min(o + i, f.n_out - 1);
            codes[i] = f.codes + at * f.n_in;
            scale[i] = f.scale + at * f.n_groups;
            bias[i] = f.bias ? f.bias[at] : 0.0f;
        }
    }

    // The next 4 outputs: rows of codes may be pages, and the processor's own prefetching starts anew in each.
    RIDGEFILL_AVX2 void prefetch(int64_t n_in, int64_t at) const {
        for (int i = 0; i < 4 && at % 64 == 0; i++) {
            _mm_prefetch((const char *) (codes[i] + 4 * n_in + at), _MM_HINT_T0);
        }
    }

    RIDGEFILL_AVX2 __m128 scales(int64_t g) const {
        const __m128i bits = _mm_setr_epi32(scale[0][g], scale[1][g], scale[2][g], scale[3][g]);
        return _mm_castsi128_ps(_mm_slli_epi32(bits, 16));
    }
};

RIDGEFILL_AVX2 inline void add_group(__m128 & y, __m128 scale, float q_scale, __m128i dot) {
    y = _mm_fmadd_ps(_mm_mul_ps(scale, _mm_set1_ps(q_scale)), _mm_cvtepi32_ps(dot), y);
}

RIDGEFILL_AVX2 inline void store(const ridgefill_few & f, int o, int r, __m128 y) {
    float out[4];
    _mm_storeu_ps(out, y);
    memcpy(f.y + r * f.y_stride + o, out, std::min(4, f.n_out - o) * sizeof(float));
}

RIDGEFILL_AVX2 void four(const ridgefill_few & f, int o, int r) {
    const outputs out(f, o);
    const __m256i ones = _mm256_set1_epi16(1);
    __m128 y = _mm_loadu_ps(out.bias);
    for (int64_t g = 0; g < f.n_groups; g++) {
        const int64_t n = std::min<int64_t>(GROUP, f.n_in - g * GROUP);
        const int64_t at = r * f.n_groups + g;
        __m256i dot[4] = {};
        for (int64_t k = 0; k < n; k += 32) {
            const __m256i q = _mm256_loadu_si256((const __m256i *) (f.q + at * GROUP + k));
            if (r == 0) {
                out.prefetch(f.n_in, g * GROUP + k);
            }
            for (int i = 0; i < 4; i++) {
                // |code| <= 128 by x with the code's sign, |x| <= 127: two products stay below 2^15
                const __m256i c = _mm256_loadu_si256((const __m256i *) (out.codes[i] + g * GROUP + k));
                const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(q, c));
                dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(pairs, ones));
            }
        }
        add_group(y, out.scales(g), f.q_scale[at], sums(dot));
    }
    store(f, o, r, y);
}

#ifdef RIDGEFILL_HAS_AVXVNNI
RIDGEFILL_AVXVNNI void four_unsigned(const ridgefill_few & f, int o, int r) {
    const outputs out(f, o);
    const __m256i flip = _mm256_set1_epi8(char(0x80));
    __m128 y = _mm_loadu_ps(out.bias);
    for (int64_t g = 0; g < f.n_groups; g++) {
        const int64_t n = std::min<int64_t>(GROUP, f.n_in - g * GROUP);
        const int64_t at = r * f.n_groups + g;
        __m256i dot[4] = {};
        for (int64_t k = 0; k < n; k += 32) {
            const __m256i q = _mm256_loadu_si256((const __m256i *) (f.q + at * GROUP + k));
            if (r == 0) {
                out.prefetch(f.n_in, g * GROUP + k);
            }
            for (int i = 0; i < 4; i++) {
                const __m256i c = _mm256_loadu_si256((const __m256i *) (out.codes[i] + g * GROUP + k));
                dot[i] = ridgefill_avxvnni_dot4(dot[i], _mm256_xor_si256(c, flip), q);
            }
        }
        add_group(y, out.scales(g), f.q_scale[at], _mm_sub_epi32(sums(dot), _mm_set1_epi32(128 * f.q_sum[at])));
    }
    store(f, o, r, y);
}
#endif

} // namespace

RIDGEFILL_AVX2 void ridgefill_avx2_few(const ridgefill_few & f) {
    for (int o = 0; o < f.n_out; o += 4) {
        for (int r = 0; r < f.n_rows; r++) { // from the second row on the codes are in the cache
            four(f, o, r);
        }
    }
}

#ifdef RIDGEFILL_HAS_AVXVNNI
RIDGEFILL_AVXVNNI void ridgefill_avxvnni_few(const ridgefill_few & f) {
    for (int o = 0; o < f.n_out; o += 4) {
        for (int r = 0; r < f.n_rows; r++) {
            four_unsigned(f, o, r);
        }
    }
}
#endif

#endif
