#include "ridgefill-x86.h"
const ridgefill_kernels * ridgefill_kernels_avx2() { return nullptr; }
const ridgefill_kernels * ridgefill_kernels_avxvnni() { return nullptr; }
