# Joins the CUDA sources of the op to ggml-hip (`target`), as upstream does with its own.
file(GLOB ridgefill_hip_sources CONFIGURE_DEPENDS "${op}/cuda/*.cu" "${op}/cuda/*.cuh")
list(FILTER ridgefill_hip_sources EXCLUDE REGEX "hopper|wgmma")
list(APPEND ridgefill_hip_sources "${op}/cuda/ridgefill-hopper.cu") # says that it has nothing
target_sources(${target} PRIVATE ${ridgefill_hip_sources})
target_include_directories(${target} PRIVATE "${op}/cuda")

set(ridgefill_hip_language HIP)
if(CMAKE_CXX_COMPILER MATCHES "hipcc(\\.bat)?$" OR WIN32)
    set(ridgefill_hip_language CXX)
endif()
list(FILTER ridgefill_hip_sources INCLUDE REGEX "\\.cu$")
set_source_files_properties(${ridgefill_hip_sources} TARGET_DIRECTORY ${target} PROPERTIES LANGUAGE ${ridgefill_hip_language})
