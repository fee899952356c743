#pragma once

// What upstream's CPU backend calls (hooks in ggml-cpu.c and ggml-cpu.cpp).

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

bool ggml_cpu_ridgefill_supports(const struct ggml_tensor * op);
size_t ggml_cpu_ridgefill_work_size(const struct ggml_tensor * op, int n_threads);
void ggml_cpu_ridgefill_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// For ggml_backend_reg_get_proc_address; NULL when the name is not ours.
// "ggml_cpu_ridgefill_path": const char * (*)(void), the path in use: "scalar", "avx2", "avxvnni", "avx512vnni", "amx",
// "neon"
void * ggml_cpu_ridgefill_proc_address(const char * name);

#ifdef __cplusplus
}
#endif
