#pragma once

// Hopper's own instructions, one thin function each: barriers in shared memory that count bytes, the tensor copy engine,
// and the warpgroup's int8 product. Only for the sm_90a target.

#include "ridgefill-problem.cuh"

#include <cuda.h>

namespace ridgefill_sm90 {

// Shared memory is addressed with 32 bits throughout. The shuffle makes the base a plain value that is the same in all
// lanes: the compiler would otherwise compute it from the block's place in the cluster each time it is used.
static __device__ __forceinline__ uint32_t shared_base(const void * p) {
    return __shfl_sync(0xffffffff, uint32_t(__cvta_generic_to_shared(p)), 0);
}

static __device__ __forceinline__ float4 load_shared(uint32_t address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
    return v;
}

// for a kernel that was launched while the one before it still runs: until that has ended and its results are visible
static __device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

//
// barriers
//

static __device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// makes initialised barriers visible to the copy engine
static __device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_expect_bytes(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" :: "r"(barrier), "r"(parity) : "memory");
}

// named barriers over `threads` threads: some only announce themselves, the others wait for them
static __device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

//
// copies into shared memory; the barrier counts their bytes
//

static __device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap * map, uint32_t barrier, int k, int line) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        :: "r"(to), "l"(map), "r"(barrier), "r"(k), "r"(line) : "memory");
}

static __device__ __forceinline__ void copy_bytes(uint32_t to, const void * from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

//
// products
//

// A descriptor's low word for lines of 128 bytes in the 128-byte swizzle, 8 lines to a block of 1024 bytes. The next 32
// inputs are 2 further, memory n bytes further is n/16 further.
static __device__ __forceinline__ uint32_t describe(uint32_t lines) {
    return (lines & 0x3ffff) >> 4 | 1 << 16;
}

static __device__ __forceinline__ uint64_t descriptor(uint32_t low) {
    return uint64_t(1024 >> 4 | 1 << 30) << 32 | low;
}

static __device__ __forceinline__ void multiply_fence()  { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// waits until at most `pending` committed groups are unfinished
template <int pending>
static __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory");
}

// The compiler must not move uses of sums that a product writes in the background across a fence or a wait.
template <int N>
static __device__ __forceinline__ void pin(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+r"(d[i]) :: "memory");
    }
}

// d = or d += 64 lines of a times N lines of b, 32 bytes deep. A lane of warp w holds lines 16w + lane/4 (+ 8) of a and
// 2*(lane%4) + 8j (+ 1) of b in d[4j + 0..3], b's line changing first.
template <int N>
struct product;

#define RF_PRODUCT(N, A, B, LIST, SET, ADD) \
    template <> struct product<N> { \
        static __device__ __forceinline__ void set(int (&d)[N/2], uint64_t a, uint64_t b) { \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" LIST "}, %" #A ", %" #B ", 0;" : SET : "l"(a), "l"(b)); \
        } \
        static __device__ __forceinline__ void add(int (&d)[N/2], uint64_t a, uint64_t b) { \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" LIST "}, %" #A ", %" #B ", 1;" : ADD : "l"(a), "l"(b)); \
        } \
    };
#define RF_P0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define RF_P1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define RF_P2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define RF_P3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define RF_P4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define RF_P5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define RF_P6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define RF_P7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define RF_P8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define RF_P9 "%72, %73, %74, %75, %76, %77, %78, %79"

#define RF_S8(i) "=r"(d[i]), "=r"(d[i + 1]), "=r"(d[i + 2]), "=r"(d[i + 3]), "=r"(d[i + 4]), "=r"(d[i + 5]), "=r"(d[i + 6]), "=r"(d[i + 7])
#define RF_A8(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define RF_ALL(...) __VA_ARGS__
RF_PRODUCT(32, 16, 17, RF_P0 ", " RF_P1,
    RF_ALL(RF_S8(0), RF_S8(8)),
    RF_ALL(RF_A8(0), RF_A8(8)))
RF_PRODUCT(64, 32, 33, RF_P0 ", " RF_P1 ", " RF_P2 ", " RF_P3,
    RF_ALL(RF_S8(0), RF_S8(8), RF_S8(16), RF_S8(24)),
    RF_ALL(RF_A8(0), RF_A8(8), RF_A8(16), RF_A8(24)))
RF_PRODUCT(96, 48, 49, RF_P0 ", " RF_P1 ", " RF_P2 ", " RF_P3 ", " RF_P4 ", " RF_P5,
    RF_ALL(RF_S8(0), RF_S8(8), RF_S8(16), RF_S8(24), RF_S8(32), RF_S8(40)),
    RF_ALL(RF_A8(0), RF_A8(8), RF_A8(16), RF_A8(24), RF_A8(32), RF_A8(40)))
RF_PRODUCT(128, 64, 65, RF_P0 ", " RF_P1 ", " RF_P2 ", " RF_P3 ", " RF_P4 ", " RF_P5 ", " RF_P6 ", " RF_P7,
    RF_ALL(RF_S8(0), RF_S8(8), RF_S8(16), RF_S8(24), RF_S8(32), RF_S8(40), RF_S8(48), RF_S8(56)),
    RF_ALL(RF_A8(0), RF_A8(8), RF_A8(16), RF_A8(24), RF_A8(32), RF_A8(40), RF_A8(48), RF_A8(56)))
RF_PRODUCT(160, 80, 81, RF_P0 ", " RF_P1 ", " RF_P2 ", " RF_P3 ", " RF_P4 ", " RF_P5 ", " RF_P6 ", " RF_P7 ", " RF_P8 ", " RF_P9,
    RF_ALL(RF_S8(0), RF_S8(8), RF_S8(16), RF_S8(24), RF_S8(32), RF_S8(40), RF_S8(48), RF_S8(56), RF_S8(64), RF_S8(72)),
    RF_ALL(RF_A8(0), RF_A8(8), RF_A8(16), RF_A8(24), RF_A8(32), RF_A8(40), RF_A8(48), RF_A8(56), RF_A8(64), RF_A8(72)))
#undef RF_P0
#undef RF_P1
#undef RF_P2
#undef RF_P3
#undef RF_P4
#undef RF_P5
#undef RF_P6
#undef RF_P7
#undef RF_P8
#undef RF_P9

#undef RF_S8
#undef RF_A8
#undef RF_ALL
#undef RF_PRODUCT

} // namespace ridgefill_sm90
