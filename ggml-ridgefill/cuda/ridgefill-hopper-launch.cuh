#pragma once

#include "ridgefill-hopper.cuh"
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

template <int BN, bool TURNS>
static bool ridgefill_hopper_launch(const ridgefill_problem & p, const ridgefill_quantized & x, float * sums,
                                    const ridgefill_hopper_plan & plan, cudaStream_t stream) {
    using stage = ridgefill_hopper_stage<BN>;
    CUtensorMap map_codes, map_x;
    const uint64_t k = uint64_t(p.n_groups)*RIDGEFILL_GROUP;
    if (!ridgefill_hopper_map(map_codes, p.codes, p.n_in, p.n_out, p.n_in, RIDGEFILL_HOPPER_OUTS) ||
        !ridgefill_hopper_map(map_x, x.q, k, p.n_rows, k, BN)) {
        return false;
    }
    const auto kernel = ridgefill_hopper_kernel<BN, TURNS>;
    cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, stage::SHARED);

    const ridgefill_hopper_work work = { (p.n_out + RIDGEFILL_HOPPER_OUTS - 1)/RIDGEFILL_HOPPER_OUTS, plan.n_whole, plan.n_shared, sums };

    // may start while x is still being quantised; it waits for that itself
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim          = dim3(plan.blocks);
    config.blockDim         = dim3(RIDGEFILL_HOPPER_THREADS);
    config.dynamicSmemBytes = stage::SHARED;
    config.stream           = stream;
    config.attrs            = &early;
    config.numAttrs         = 1;
    if (cudaLaunchKernelEx(&config, kernel, map_codes, map_x, p, x, work) != cudaSuccess) {
        return false;
    }
    if (plan.n_shared > 0) {
        ridgefill_hopper_add_kernel<BN><<<dim3(plan.blocks, BN/16), 256, 0, stream>>>(p, work);
    }
    return true;
}
