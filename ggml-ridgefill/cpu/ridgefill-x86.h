#pragma once

// x86 paths: one function attribute per instruction set, so that every path is in every build and is chosen at run
// time.

#include "ridgefill-kernel.h"

#if defined(__x86_64__) || defined(_M_X64)
#define RIDGEFILL_X86

#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#pragma GCC diagnostic ignored "-Wuninitialized" // false alarms inside GCC's own intrinsics (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#ifdef _MSC_VER
#define RIDGEFILL_TARGET(isa) // MSVC offers all intrinsics everywhere
#else
#define RIDGEFILL_TARGET(isa) __attribute__((target(isa)))
#endif

#define RIDGEFILL_AVX2 RIDGEFILL_TARGET("avx2,fma")
#define RIDGEFILL_AVX512 RIDGEFILL_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

#if !defined(__GNUC__) || (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define RIDGEFILL_HAS_AVXVNNI
#define RIDGEFILL_AVXVNNI RIDGEFILL_TARGET("avx2,fma,avxvnni")
#endif

// acc + dot products of 4 unsigned with 4 signed bytes
RIDGEFILL_AVX512 inline __m512i ridgefill_avx512_dot4(__m512i acc, __m512i u8, __m512i s8) {
#if defined(__GNUC__) && !defined(__clang__)
    // with the intrinsic GCC 12 copies every accumulator around in each step
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u8), "v"(s8));
    return acc;
#else
    return _mm512_dpbusd_epi32(acc, u8, s8);
#endif
}

#ifdef RIDGEFILL_HAS_AVXVNNI
RIDGEFILL_AVXVNNI inline __m256i ridgefill_avxvnni_dot4(__m256i acc, __m256i u8, __m256i s8) {
#if defined(__GNUC__) && !defined(__clang__)
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(u8), "x"(s8));
    return acc;
#else
    return _mm256_dpbusd_avx_epi32(acc, u8, s8);
#endif
}
#endif

struct ridgefill_x86_features {
    bool avx2; // and FMA
    bool avxvnni;
    bool avx512vnni; // and F, BW, DQ, VL
    bool amx_int8;   // and the operating system's permission to use it
};

const ridgefill_x86_features & ridgefill_x86();

// few rows: ridgefill-few-*.cpp
void ridgefill_avx512_few(const ridgefill_few & f);
void ridgefill_avxvnni_few(const ridgefill_few & f);
void ridgefill_avx2_few(const ridgefill_few & f);

// shared by the AVX-512 and AMX paths
void ridgefill_avx512_quantize(const float * x, size_t stride, int n_rows, int n, ridgefill_x_group * out);
void ridgefill_avx512_start(const float * bias, int n_out, int n_panels, float * acc);
void ridgefill_avx512_store(const float * acc, int n_out, int n_rows, float * y, size_t stride);

#endif
