#pragma once

#include "ridgefill-hopper-kernel.cuh"

#include <algorithm>

// A matrix of bytes as the tensor copy engine sees it: boxes of 128 bytes x `box_lines`, swizzled; outside it are zeros.
static bool ridgefill_hopper_map(CUtensorMap & map, const void * base, uint64_t bytes, uint64_t lines, uint64_t pitch, uint32_t box_lines) {
    using encode_t = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
        const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static const encode_t encode = [] { // through the runtime, so that nothing links to the driver
        void * function = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
#else
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
        return result == cudaDriverEntryPointSuccess ? reinterpret_cast<encode_t>(function) : nullptr;
    }();
    const cuuint64_t size[2]   = { bytes, lines };
    const cuuint64_t stride[1] = { pitch };
    const cuuint32_t box[2]    = { RIDGEFILL_GROUP, box_lines };
    const cuuint32_t step[2]   = { 1, 1 };
    return encode && encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void *>(base), size, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int BN, int TURNS>
static bool ridgefill_hopper_launch(const ridgefill_problem & p, const ridgefill_quantized & x, const ridgefill_split & split,
                                    int n_processors, cudaStream_t stream) {
    using stage = ridgefill_hopper_stage<BN>;
    CUtensorMap map_codes, map_x;
    const uint64_t k = uint64_t(p.n_groups)*RIDGEFILL_GROUP;
    if (!ridgefill_hopper_map(map_codes, p.codes, p.n_in, p.n_out, p.n_in, RIDGEFILL_HOPPER_OUTS) ||
        !ridgefill_hopper_map(map_x, x.q, k, p.n_rows, k, BN)) {
        return false;
    }
    const auto kernel = ridgefill_hopper_kernel<BN, TURNS>;
    cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, stage::SHARED);

    const ridgefill_hopper_grid grid = {
        (p.n_out + RIDGEFILL_HOPPER_OUTS - 1)/RIDGEFILL_HOPPER_OUTS, (p.n_rows + BN - 1)/BN, split.parts };
    const int blocks = std::min(grid.n_o*grid.n_r*grid.parts, n_processors);
    kernel<<<blocks, RIDGEFILL_HOPPER_THREADS, stage::SHARED, stream>>>(map_codes, map_x, p, x, split, grid);
    ridgefill_add_parts(p, split, stream);
    return true;
}
