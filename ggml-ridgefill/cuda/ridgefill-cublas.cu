#include "ridgefill-cublas.cuh"

static __global__ void ridgefill_dequantize_kernel(ridgefill_problem p, nv_bfloat16 * __restrict__ w) {
    const int64_t out = blockIdx.x;
    for (int i = threadIdx.x; i < p.n_in; i += blockDim.x) {
        w[out*p.n_in + i] = __float2bfloat16(ridgefill_bf16(p.scale[out*p.n_groups + i/RIDGEFILL_GROUP])*p.codes[out*p.n_in + i]);
    }
}

static __global__ void ridgefill_round_kernel(ridgefill_problem p, nv_bfloat16 * __restrict__ x) {
    const int64_t row = blockIdx.x;
    for (int i = threadIdx.x; i < p.n_in; i += blockDim.x) {
        x[row*p.n_in + i] = __float2bfloat16(p.x[row*p.x_stride + i]);
    }
}

static __global__ void ridgefill_bias_kernel(ridgefill_problem p) {
    const int64_t row = blockIdx.x;
    for (int i = threadIdx.x; i < p.n_out; i += blockDim.x) {
        p.y[row*p.n_out + i] = p.bias ? p.bias[i] : 0.0f;
    }
}

void ridgefill_cublas(ggml_backend_cuda_context & ctx, const ridgefill_problem & p) {
    cudaStream_t stream = ctx.stream();
    ggml_cuda_pool_alloc<nv_bfloat16> w(ctx.pool(), int64_t(p.n_in)*p.n_out);
    ggml_cuda_pool_alloc<nv_bfloat16> x(ctx.pool(), int64_t(p.n_in)*p.n_rows);
    ridgefill_dequantize_kernel<<<p.n_out, 256, 0, stream>>>(p, w.get());
    ridgefill_round_kernel<<<p.n_rows, 256, 0, stream>>>(p, x.get());
    ridgefill_bias_kernel<<<p.n_rows, 256, 0, stream>>>(p);

    const float one = 1.0f;
    CUBLAS_CHECK(cublasSetStream(ctx.cublas_handle(), stream));
    CUBLAS_CHECK(cublasGemmEx(ctx.cublas_handle(), CUBLAS_OP_T, CUBLAS_OP_N, p.n_out, p.n_rows, p.n_in,
                              &one, w.get(), CUDA_R_16BF, p.n_in, x.get(), CUDA_R_16BF, p.n_in,
                              &one, p.y, CUDA_R_32F, p.n_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
}
