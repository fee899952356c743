#include "ridgefill-x86.h"

#if defined(RIDGEFILL_X86) && (!defined(__GNUC__) || defined(__clang__) || __GNUC__ >= 11)

#include <cstring>

#define RIDGEFILL_AMX RIDGEFILL_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")

namespace {

constexpr int GROUP   = RIDGEFILL_GROUP;
constexpr int PANEL   = RIDGEFILL_PANEL;
constexpr int BLOCK_R = RIDGEFILL_BLOCK_R;

struct alignas(64) tile_config {
    uint8_t  palette;
    uint8_t  start_row;
    uint8_t  reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
};
static_assert(sizeof(tile_config) == 64, "layout is the processor's");

// Eight full tiles. A constant in memory: GCC 12 believes that the load reads 8 bytes and would drop stores to the rest.
const tile_config eight_tiles = {
    1, 0, {}, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 },
};

// Upstream's AMX code configures each thread once and relies on it, so its configuration is put back.
RIDGEFILL_AMX void enter(void * saved) {
    _tile_storeconfig(saved);
    _tile_loadconfig(&eight_tiles);
}

RIDGEFILL_AMX void leave(const void * saved) {
    _tile_loadconfig(saved); // all zeros when there was none, which releases the tiles
}

RIDGEFILL_AMX void pack(const int8_t * codes, size_t stride, int n_out, int n, void * out) {
    auto * to = static_cast<char *>(out);
    for (int o = 0; o < n_out; o++) {
        for (int i = 0; i < GROUP; i += 64) {
            const __mmask64 mask = n - i >= 64 ? ~0ull : n > i ? (1ull << (n - i)) - 1 : 0;
            _mm512_store_si512(to + o*GROUP + i, _mm512_maskz_loadu_epi8(mask, codes + o*stride + i));
        }
    }
    for (int o = n_out; o % 16 != 0; o++) {
        memset(to + o*GROUP, 0, GROUP);
    }
}

// acc[o][r] += scale[o] * x_scale[r] * dot[o][r] for one tile of 16 outputs by 16 rows
RIDGEFILL_AMX inline void accumulate(const int32_t * dot, const float * scale, __m512 x_scale, float * acc) {
    for (int i = 0; i < 16; i++) {
        const __m512 d = _mm512_cvtepi32_ps(_mm512_load_si512(dot + 16*i));
        float * a = acc + i*BLOCK_R;
        _mm512_store_ps(a, _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(scale[i]), x_scale), d, _mm512_load_ps(a)));
    }
}

// 32 outputs by 2 panels: 4 accumulator tiles (0-3), 2 tiles of codes (4, 5), 2 of x (6, 7)
RIDGEFILL_AMX void multiply_2x2(const char * codes, const float * scale,
                                const ridgefill_x_group * x0, const ridgefill_x_group * x1, int n, float * acc) {
    alignas(64) int32_t dot[4][256];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < n; i += 64) {
        _tile_loadd(4, codes + i, GROUP);
        _tile_loadd(6, x0->q[i/4], 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(5, codes + 16*GROUP + i, GROUP);
        _tile_dpbssd(2, 5, 6);
        _tile_loadd(7, x1->q[i/4], 64);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, dot[0], 64);
    _tile_stored(2, dot[2], 64);
    _tile_stored(1, dot[1], 64);
    _tile_stored(3, dot[3], 64);
    const __m512 s0 = _mm512_load_ps(x0->scale);
    const __m512 s1 = _mm512_load_ps(x1->scale);
    accumulate(dot[0], scale,      s0, acc);
    accumulate(dot[2], scale + 16, s0, acc + 16*BLOCK_R);
    accumulate(dot[1], scale,      s1, acc + PANEL);
    accumulate(dot[3], scale + 16, s1, acc + 16*BLOCK_R + PANEL);
}

RIDGEFILL_AMX void multiply_1x1(const char * codes, const float * scale, const ridgefill_x_group * x, int n, float * acc) {
    alignas(64) int32_t dot[256];
    _tile_zero(0);
    for (int i = 0; i < n; i += 64) {
        _tile_loadd(4, codes + i, GROUP);
        _tile_loadd(6, x->q[i/4], 64);
        _tile_dpbssd(0, 4, 6);
    }
    _tile_stored(0, dot, 64);
    accumulate(dot, scale, _mm512_load_ps(x->scale), acc);
}

void multiply(const void * codes, const float * scale, int n_out,
              const ridgefill_x_group * x, size_t x_stride, int n_panels, int n, float * acc) {
    const auto * c = static_cast<const char *>(codes);
    for (int o = 0; o < n_out; o += 32) {
        const int n_tiles = n_out - o >= 32 ? 2 : 1;
        for (int p = 0; p < n_panels; p += 2) {
            float * a = acc + o*BLOCK_R + p*PANEL;
            const auto * x_p = x + p*x_stride;
            if (n_tiles == 2 && n_panels - p >= 2) {
                multiply_2x2(c + o*GROUP, scale + o, x_p, x_p + x_stride, n, a);
                continue;
            }
            for (int i = 0; i < n_tiles; i++) {
                for (int j = 0; j < 2 && p + j < n_panels; j++) {
                    multiply_1x1(c + (o + 16*i)*GROUP, scale + o + 16*i, x_p + j*x_stride, n, a + 16*i*BLOCK_R + j*PANEL);
                }
            }
        }
    }
}

} // namespace

const ridgefill_kernels * ridgefill_kernels_amx() {
    static const ridgefill_kernels kernels = {
        "amx", 1, enter, leave, ridgefill_avx512_quantize, pack, multiply, ridgefill_avx512_store,
    };
    return ridgefill_x86().amx_int8 ? &kernels : nullptr;
}

#else

const ridgefill_kernels * ridgefill_kernels_amx() { return nullptr; }

#endif
