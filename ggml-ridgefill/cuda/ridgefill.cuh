#pragma once

// What upstream's CUDA and HIP backends call (hooks in ggml-cuda.cu).

#include "ggml-cuda/common.cuh"

bool ggml_cuda_ridgefill_supported(int device, const ggml_tensor * op);
void ggml_cuda_op_ridgefill(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
