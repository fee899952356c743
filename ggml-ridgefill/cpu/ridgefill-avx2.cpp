#include "ridgefill-x86.h"

#ifdef RIDGEFILL_X86

#include <cmath>
#include <cstring>

namespace {

constexpr int GROUP = RIDGEFILL_GROUP;
constexpr int PANEL = RIDGEFILL_PANEL;

RIDGEFILL_AVX2 inline uint32_t max_of(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return uint32_t(_mm_cvtsi128_si32(m));
}

RIDGEFILL_AVX2 void quantize(const float * x, size_t stride, int n_rows, int n, ridgefill_x_group * out) {
    memset(out, 0, sizeof(*out));
    for (int r = 0; r < PANEL; r++) {
        out->scale[r] = 1.0f;
    }
    for (int r = 0; r < n_rows; r++) {
        const float * row = x + r * stride;
        // absmax as an integer maximum of the bits without sign: a NaN or an infinity wins over every finite number
        __m256i top = _mm256_setzero_si256();
        for (int i = 0; i < n; i += 8) {
            const __m256i bits = _mm256_loadu_si256((const __m256i *) (row + i));
            top = _mm256_max_epu32(top, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
        }
        const uint32_t bits = max_of(top);
        float absmax;
        memcpy(&absmax, &bits, 4);
        const float inverse = 127.0f / absmax;
        const bool finite = bits < 0x7f800000;
        if (!finite || inverse == INFINITY) { // see ridgefill_ref_quantize
            out->scale[r] = finite ? 1.0f : NAN;
            continue;
        }
        out->scale[r] = absmax / 127.0f;

        const __m256 by = _mm256_set1_ps(inverse);
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < n; i += 32) {
            __m256i part[4];
            for (int j = 0; j < 4; j++) {
                part[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(row + i + 8 * j), by));
            }
            const __m256i q =
                _mm256_packs_epi16(_mm256_packs_epi32(part[0], part[1]), _mm256_packs_epi32(part[2], part[3]));
            sum = _mm256_add_epi64(
                sum, _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(char(0x80))), _mm256_setzero_si256())
            );
            alignas(32) int32_t quads[8];
            _mm256_store_si256((__m256i *) quads, q);
            for (int k = 0; k < 8; k++) { // the packs left inputs 8*j + 4*lane .. + 3 in quad 4*lane + j
                memcpy(out->q[i / 4 + k % 4 * 2 + k / 4][r], &quads[k], 4);
            }
        }
        const __m128i s = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        out->sum[r] = int32_t(_mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 2)) - 128 * n;
    }
}

RIDGEFILL_AVX2 void start(const float * bias, int n_out, int n_panels, float * acc) {
    for (int p = 0; p < n_panels; p++) {
        for (int o = 0; o < n_out; o++) {
            float * a = acc + ridgefill_acc_index(o, p);
            _mm256_store_ps(a + 0, _mm256_set1_ps(bias ? bias[o] : 0.0f));
            _mm256_store_ps(a + 8, _mm256_set1_ps(bias ? bias[o] : 0.0f));
        }
    }
}

RIDGEFILL_AVX2 void store(const float * acc, int n_out, int n_rows, float * y, size_t stride) {
    for (int r = 0; r < n_rows; r += 8) {
        for (int o = 0; o < n_out; o += 8) {
            const float * from = acc + ridgefill_acc_index(o, r / PANEL) + r % PANEL;
            __m256 a[8], b[8];
            for (int i = 0; i < 8; i += 2) {
                const __m256 even = _mm256_load_ps(from + i * PANEL);
                const __m256 odd = _mm256_load_ps(from + (i + 1) * PANEL);
                a[i + 0] = _mm256_unpacklo_ps(even, odd);
                a[i + 1] = _mm256_unpackhi_ps(even, odd);
            }
            for (int i = 0; i < 8; i += 4) {
                b[i + 0] = _mm256_shuffle_ps(a[i + 0], a[i + 2], 0x44);
                b[i + 1] = _mm256_shuffle_ps(a[i + 0], a[i + 2], 0xee);
                b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
                b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
            }
            const __m256i mask =
                _mm256_cmpgt_epi32(_mm256_set1_epi32(n_out - o), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            for (int i = 0; i < 8 && r + i < n_rows; i++) {
                const __m256 row =
                    i < 4 ? _mm256_permute2f128_ps(b[i], b[i + 4], 0x20) : _mm256_permute2f128_ps(b[i - 4], b[i], 0x31);
                _mm256_maskstore_ps(y + (r + i) * stride + o, mask, row);
            }
        }
    }
}

// acc += scale * x_scale * dot for 8 rows
RIDGEFILL_AVX2 inline void accumulate(float * acc, float scale, const float * x_scale, __m256i dot) {
    const __m256 s = _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_load_ps(x_scale));
    _mm256_store_ps(acc, _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(dot), _mm256_load_ps(acc)));
}

//
// AVX2: codes and x widened to 16 bits, so that nothing saturates
//

RIDGEFILL_AVX2 void pack_wide(const int8_t * codes, size_t stride, int n_out, int n, void * out) {
    auto * to = static_cast<int16_t *>(out);
    for (int o = 0; o < (n_out + 15) / 16 * 16; o++) {
        for (int i = 0; i < GROUP; i += 16) {
            const __m128i c =
                o < n_out && i < n ? _mm_loadu_si128((const __m128i *) (codes + o * stride + i)) : _mm_setzero_si128();
            _mm256_storeu_si256((__m256i *) (to + o * GROUP + i), _mm256_cvtepi8_epi16(c));
        }
    }
}

// 4 outputs by 8 rows; each 64-bit lane of a sum holds two halves of a row's dot product
RIDGEFILL_AVX2 void multiply_wide(const ridgefill_block & b) {
    for (int g = 0; g < b.n_groups; g++) {
        const int n = g + 1 == b.n_groups ? b.n_last : GROUP;
        for (int p = 0; p < 2 * b.n_panels; p++) { // halves of panels
            const ridgefill_x_group & x = b.x[p / 2 * b.x_stride + g];
            const int row = p % 2 * 8;
            for (int o = 0; o < b.n_out; o += 4) {
                const char * codes = b.codes + g * b.codes_stride + o * GROUP * sizeof(int16_t);
                __m256i sum[4][2];
                for (int i = 0; i < 4; i++) {
                    sum[i][0] = sum[i][1] = _mm256_setzero_si256();
                }
                for (int k = 0; k < n / 4; k++) {
                    const __m256i q0 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *) x.q[k][row]));
                    const __m256i q1 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *) x.q[k][row + 4]));
                    for (int i = 0; i < 4; i++) {
                        int64_t four;
                        memcpy(&four, codes + (i * GROUP + 4 * k) * sizeof(int16_t), 8);
                        const __m256i c = _mm256_set1_epi64x(four);
                        sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(c, q0));
                        sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(c, q1));
                    }
                }
                for (int i = 0; i < 4; i++) {
                    const __m256i dot = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[i][0], sum[i][1]), 0xd8);
                    accumulate(
                        b.acc + ridgefill_acc_index(o + i, p / 2) + row, b.scale[g * b.scale_stride + o + i],
                        x.scale + row, dot
                    );
                }
            }
        }
    }
}

//
// AVX-VNNI: unsigned codes (code + 128) by signed x, 128 * sum(x) taken off, as in the AVX-512 path
//

#ifdef RIDGEFILL_HAS_AVXVNNI

RIDGEFILL_AVX2 void pack_unsigned(const int8_t * codes, size_t stride, int n_out, int n, void * out) {
    auto * to = static_cast<char *>(out);
    for (int o = 0; o < (n_out + 15) / 16 * 16; o++) {
        for (int i = 0; i < GROUP; i += 32) {
            const __m256i c = o < n_out && i < n ? _mm256_loadu_si256((const __m256i *) (codes + o * stride + i))
                                                 : _mm256_setzero_si256();
            _mm256_storeu_si256((__m256i *) (to + o * GROUP + i), _mm256_xor_si256(c, _mm256_set1_epi8(char(0x80))));
        }
    }
}

// NO outputs by one panel
template <int NO>
RIDGEFILL_AVXVNNI inline void
multiply_panel(const char * codes, const float * scale, const ridgefill_x_group & x, int n, float * acc) {
    __m256i dot[NO][2];
    for (int i = 0; i < NO; i++) {
        for (int h = 0; h < 2; h++) {
            const __m256i sum = _mm256_load_si256((const __m256i *) (x.sum + 8 * h));
            dot[i][h] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
        }
    }
    for (int k = 0; k < n / 4; k++) {
        const __m256i q0 = _mm256_load_si256((const __m256i *) x.q[k][0]);
        const __m256i q1 = _mm256_load_si256((const __m256i *) x.q[k][8]);
        for (int i = 0; i < NO; i++) {
            int word;
            memcpy(&word, codes + i * GROUP + 4 * k, 4);
            const __m256i c = _mm256_set1_epi32(word);
            dot[i][0] = ridgefill_avxvnni_dot4(dot[i][0], c, q0);
            dot[i][1] = ridgefill_avxvnni_dot4(dot[i][1], c, q1);
        }
    }
    for (int i = 0; i < NO; i++) {
        accumulate(acc + i * PANEL + 0, scale[i], x.scale + 0, dot[i][0]);
        accumulate(acc + i * PANEL + 8, scale[i], x.scale + 8, dot[i][1]);
    }
}

RIDGEFILL_AVXVNNI void multiply_unsigned(const ridgefill_block & b) {
    for (int g = 0; g < b.n_groups; g++) {
        const int n = g + 1 == b.n_groups ? b.n_last : GROUP;
        for (int p = 0; p < b.n_panels; p++) {
            const ridgefill_x_group & x = b.x[p * b.x_stride + g];
            for (int o = 0; o < b.n_out; o += 16) { // as 6 + 6 + 4: 12 sums, 2 of x and a code fill the 16 registers
                const char * codes = b.codes + g * b.codes_stride + o * GROUP;
                const float * scale = b.scale + g * b.scale_stride + o;
                float * acc = b.acc + ridgefill_acc_index(o, p);
                multiply_panel<6>(codes, scale, x, n, acc);
                multiply_panel<6>(codes + 6 * GROUP, scale + 6, x, n, acc + 6 * PANEL);
                multiply_panel<4>(codes + 12 * GROUP, scale + 12, x, n, acc + 12 * PANEL);
            }
        }
    }
}

#endif

} // namespace

const ridgefill_kernels * ridgefill_kernels_avx2() {
    static const ridgefill_kernels kernels = {"avx2",    2,     false,         nullptr, nullptr,           quantize,
                                              pack_wide, start, multiply_wide, store,   ridgefill_avx2_few};
    return ridgefill_x86().avx2 ? &kernels : nullptr;
}

const ridgefill_kernels * ridgefill_kernels_avxvnni() {
#ifdef RIDGEFILL_HAS_AVXVNNI
    static const ridgefill_kernels kernels = {"avxvnni",
                                              1,
                                              false,
                                              nullptr,
                                              nullptr,
                                              quantize,
                                              pack_unsigned,
                                              start,
                                              multiply_unsigned,
                                              store,
                                              ridgefill_avxvnni_few};
    return ridgefill_x86().avxvnni ? &kernels : nullptr;
#else
    return nullptr;
#endif
}

#else

const ridgefill_kernels * ridgefill_kernels_avx2() {
    return nullptr;
}
const ridgefill_kernels * ridgefill_kernels_avxvnni() {
    return nullptr;
}

#endif
