#pragma once

#include "ggml-cuda/common.cuh"
#include "ridgefill-problem.cuh"

// The yardstick, not a path that is chosen: codes and x to bf16, then the vendor's library. GGML_RIDGEFILL_CUDA=cublas
void ridgefill_cublas(ggml_backend_cuda_context & ctx, const ridgefill_problem & p);
