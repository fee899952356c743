# Joins the op to ggml-cuda (`target`). The Hopper kernel needs the sm_90a target next to the others; the CUDA driver
# takes that code over sm_90's on such a device.
file(GLOB ridgefill_cuda_sources CONFIGURE_DEPENDS "${op}/cuda/*.cu" "${op}/cuda/*.cuh")
target_sources(${target} PRIVATE ${ridgefill_cuda_sources})

get_target_property(ridgefill_archs ${target} CUDA_ARCHITECTURES)
if(ridgefill_archs STREQUAL "native")
    get_directory_property(ridgefill_archs DIRECTORY "${CMAKE_BINARY_DIR}/upstream/llama.cpp/ggml/src/ggml-cuda"
                           DEFINITION CMAKE_CUDA_ARCHITECTURES_NATIVE)
endif()
get_directory_property(ridgefill_nvcc DIRECTORY "${CMAKE_BINARY_DIR}/upstream/llama.cpp/ggml/src/ggml-cuda"
                       DEFINITION CMAKE_CUDA_COMPILER_VERSION)
if(ridgefill_archs MATCHES "(^|;)(90|all)" AND ridgefill_nvcc VERSION_GREATER_EQUAL 12.0)
    set(ridgefill_hopper "${op}/cuda/ridgefill-hopper.cu")
    set_property(SOURCE "${ridgefill_hopper}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_DEFINITIONS RIDGEFILL_HOPPER)
    if(NOT ridgefill_archs MATCHES "(^|;)90a")
        set_property(SOURCE "${ridgefill_hopper}" TARGET_DIRECTORY ${target} PROPERTY
            COMPILE_OPTIONS "-gencode=arch=compute_90a,code=sm_90a")
    endif()
endif()
