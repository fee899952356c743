#include "ridgefill-x86.h"

#if defined(RIDGEFILL_X86) && (!defined(__GNUC__) || defined(__clang__) || __GNUC__ >= 11)

#include <cstring>

#define RIDGEFILL_AMX RIDGEFILL_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")

namespace {

constexpr int GROUP = RIDGEFILL_GROUP;
constexpr int TILE = 16 * RIDGEFILL_PANEL; // accumulators of a tile register

struct alignas(64) tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(tile_config) == 64, "layout is the processor's");

// Eight full tiles. A constant in memory: GCC 12 believes that the load reads 8 bytes and would drop stores to the
// rest.
const tile_config eight_tiles = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16},
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
            _mm512_store_si512(to + o * GROUP + i, _mm512_maskz_loadu_epi8(mask, codes + o * stride + i));
        }
    }
    for (int o = n_out; o % 16 != 0; o++) {
        memset(to + o * GROUP, 0, GROUP);
    }
}

// Tile registers: accumulators 0, 1 (first 16 outputs, 2 panels) and 2, 3 (next 16 outputs); codes 4, 5; x 6, 7.

template <int NP>
RIDGEFILL_AMX inline void
multiply_first(const char * codes, size_t row, const ridgefill_x_group * x0, const ridgefill_x_group * x1, int i) {
    _tile_loadd(4, codes + i, row);
    _tile_loadd(6, x0->q[i / 4], 64);
    _tile_dpbssd(0, 4, 6);
    if (NP == 2) {
        _tile_loadd(7, x1->q[i / 4], 64);
        _tile_dpbssd(1, 4, 7);
    }
}

template <int NP>
RIDGEFILL_AMX inline void multiply_second(const char * codes, size_t row, int i) { // with x of multiply_first
    _tile_loadd(5, codes + 16 * row + i, row);
    _tile_dpbssd(2, 5, 6);
    if (NP == 2) {
        _tile_dpbssd(3, 5, 7);
    }
}

struct step {
    const char * codes;
    const float * scale;
    const ridgefill_x_group * x0;
    const ridgefill_x_group * x1;
    float * acc;
};

// acc += scale * x_scale * dot for outputs [begin, begin + 8) of a step; acc and dot are [panel][32 outputs][row]
template <int NP>
RIDGEFILL_AMX inline void accumulate(const step & s, const int32_t * dot, int begin) {
    const __m512 x_scale[2] = {_mm512_load_ps(s.x0->scale), _mm512_load_ps(s.x1->scale)};
    for (int o = begin; o < begin + 8; o++) {
        const __m512 scale = _mm512_set1_ps(s.scale[o]);
        __m512 sum[NP];
        for (int p = 0; p < NP; p++) {
            const __m512 d = _mm512_cvtepi32_ps(_mm512_load_si512(dot + 2 * p * TILE + 16 * o));
            sum[p] =
                _mm512_fmadd_ps(_mm512_mul_ps(scale, x_scale[p]), d, _mm512_load_ps(s.acc + 2 * p * TILE + 16 * o));
        }
        for (int p = 0; p < NP; p++) {
            _mm512_store_ps(s.acc + 2 * p * TILE + 16 * o, sum[p]);
        }
    }
}

template <int NP>
RIDGEFILL_AMX inline void store_pair(int32_t * dot, bool second) {
    if (!second) {
        _tile_stored(0, dot, 64);
        if (NP == 2) {
            _tile_stored(1, dot + 2 * TILE, 64);
        }
    } else {
        _tile_stored(2, dot + TILE, 64);
        if (NP == 2) {
            _tile_stored(3, dot + 3 * TILE, 64);
        }
    }
}

// Outputs [o_begin, o_end) by panels [p_begin, p_end) in steps of 16*NO by NP.
//
// Two facts shape the order. Accumulator tiles are not renamed: a store waits for its tile and the next product for the
// store, so the second 16 outputs of a step are stored while the tile unit works on the first 16 of the next. And a
// tile load takes 16 of the 192 load buffers, so products and the arithmetic on older integers are mixed finely.
template <int NO, int NP>
RIDGEFILL_AMX void multiply_part(const ridgefill_block & b, int o_begin, int o_end, int p_begin, int p_end) {
    alignas(4096) int32_t dot[4 * TILE];
    step before = {};
    for (int g = 0; g < b.n_groups; g++) {
        const bool two_halves = g + 1 < b.n_groups || b.n_last > 64;
        for (int o = o_begin; o < o_end; o += 16 * NO) {
            for (int p = p_begin; p < p_end; p += NP) {
                step now;
                now.codes = b.codes + g * b.codes_stride + o * b.codes_row;
                now.scale = b.scale + g * b.scale_stride + o;
                now.x0 = b.x + p * b.x_stride + g;
                now.x1 = NP == 2 ? now.x0 + b.x_stride : now.x0;
                now.acc = b.acc + ridgefill_acc_index(o, p);

                _tile_zero(0);
                _tile_zero(1);
                multiply_first<NP>(now.codes, b.codes_row, now.x0, now.x1, 0);
                if (before.acc) {
                    accumulate<NP>(before, dot, 0);
                }
                if (NO == 2) {
                    store_pair<NP>(dot, true);
                    _tile_zero(2);
                    _tile_zero(3);
                    multiply_second<NP>(now.codes, b.codes_row, 0);
                }
                if (before.acc) {
                    accumulate<NP>(before, dot, 8);
                }
                if (two_halves) {
                    multiply_first<NP>(now.codes, b.codes_row, now.x0, now.x1, 64);
                }
                if (NO == 2 && before.acc) {
                    accumulate<NP>(before, dot, 16);
                }
                if (NO == 2 && two_halves) {
                    multiply_second<NP>(now.codes, b.codes_row, 64);
                }
                if (NO == 2 && before.acc) {
                    accumulate<NP>(before, dot, 24);
                }
                store_pair<NP>(dot, false);
                before = now;
            }
        }
    }
    if (before.acc) {
        if (NO == 2) {
            store_pair<NP>(dot, true);
        }
        for (int o = 0; o < 16 * NO; o += 8) {
            accumulate<NP>(before, dot, o);
        }
    }
}

void multiply(const ridgefill_block & b) {
    const int o_pairs = b.n_out / 32 * 32;
    const int p_pairs = b.n_panels / 2 * 2;
    multiply_part<2, 2>(b, 0, o_pairs, 0, p_pairs);
    if (p_pairs < b.n_panels) {
        multiply_part<2, 1>(b, 0, o_pairs, p_pairs, b.n_panels);
    }
    if (o_pairs < b.n_out) {
        multiply_part<1, 2>(b, o_pairs, b.n_out, 0, p_pairs);
        if (p_pairs < b.n_panels) {
            multiply_part<1, 1>(b, o_pairs, b.n_out, p_pairs, b.n_panels);
        }
    }
}

} // namespace

const ridgefill_kernels * ridgefill_kernels_amx() {
    static const ridgefill_kernels kernels = {
        "amx",    1,
        true,     enter,
        leave,    ridgefill_avx512_quantize,
        pack,     ridgefill_avx512_start,
        multiply, ridgefill_avx512_store,
        nullptr, // tiles read codes in place already
    };
    return ridgefill_x86().amx_int8 ? &kernels : nullptr;
}

#else

const ridgefill_kernels * ridgefill_kernels_amx() {
    return nullptr;
}

#endif
