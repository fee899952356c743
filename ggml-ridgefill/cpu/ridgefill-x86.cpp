#include "ridgefill-x86.h"

#ifdef RIDGEFILL_X86

#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

struct regs {
    unsigned a, b, c, d;
};

regs cpuid(unsigned leaf, unsigned sub) {
    regs r = {};
#ifdef _MSC_VER
    int out[4];
    __cpuidex(out, int(leaf), int(sub));
    r = {unsigned(out[0]), unsigned(out[1]), unsigned(out[2]), unsigned(out[3])};
#else
    __get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
#endif
    return r;
}

RIDGEFILL_TARGET("xsave") unsigned long long enabled_states() {
    return _xgetbv(0);
}

// Tile data is off in a new process; Linux wants to be asked once. Other systems: not tried.
bool may_use_tiles() {
#ifdef __linux__
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
    constexpr long XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

ridgefill_x86_features detect() {
    ridgefill_x86_features f = {};
    const auto bit = [](unsigned reg, int n) { return (reg >> n & 1) != 0; };

    const regs l1 = cpuid(1, 0);
    if (!bit(l1.c, 27)) { // OSXSAVE
        return f;
    }
    const auto states = enabled_states();
    const bool ymm = (states & 0x6) == 0x6;
    const bool zmm = (states & 0xe6) == 0xe6;
    const bool tiles = (states & 0x60000) == 0x60000;

    const regs l7 = cpuid(7, 0);
    const regs l71 = cpuid(7, 1);
    f.avx2 = ymm && bit(l7.b, 5) && bit(l1.c, 12);
    f.avxvnni = f.avx2 && bit(l71.a, 4);
    f.avx512vnni = f.avx2 && zmm && bit(l7.b, 16) && bit(l7.b, 17) && bit(l7.b, 30) && bit(l7.b, 31) && bit(l7.c, 11);
    f.amx_int8 = f.avx512vnni && tiles && bit(l7.d, 24) && bit(l7.d, 25) && may_use_tiles();
    return f;
}

} // namespace

const ridgefill_x86_features & ridgefill_x86() {
    static const ridgefill_x86_features features = detect();
    return features;
}

#endif
