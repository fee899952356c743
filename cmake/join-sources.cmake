# Our own sources enter upstream's targets from here, so that patches hold call sites only. A new file in one of these
# folders is picked up by the next build.
#
#   ggml-ridgefill/src    -> ggml-base      ggml-ridgefill/<backend> -> ggml-<backend>
#   llama.cpp/src         -> llama          llama.cpp/common         -> llama-common
#   llama.cpp/server      -> server-context
#
# A backend folder may hold a sources.cmake instead of being globbed (flags per file, languages); it gets `target`.
set(op "${PROJECT_SOURCE_DIR}/ggml-ridgefill")
set(fork "${PROJECT_SOURCE_DIR}/llama.cpp")

function(ridgefill_join target folder)
    file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.c" "${folder}/*.cpp" "${folder}/*.h")
    target_sources(${target} PRIVATE ${sources})
endfunction()

ridgefill_join(ggml-base "${op}/src")
target_include_directories(ggml-base PUBLIC "${op}/include" PRIVATE "${op}/src")

foreach(backend cpu cuda hip rpc vulkan)
    set(target ggml-${backend})
    if(TARGET ${target} AND IS_DIRECTORY "${op}/${backend}")
        target_include_directories(${target} PRIVATE "${op}/src" "${op}/${backend}")
        if(EXISTS "${op}/${backend}/sources.cmake")
            include("${op}/${backend}/sources.cmake")
        else()
            ridgefill_join(${target} "${op}/${backend}")
        endif()
    endif()
endforeach()

# GCC 12's own AVX-512 header trips these warnings some 2,400 times, and hides every other line of the build
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(ggml-cpu PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

ridgefill_join(llama "${fork}/src")
target_include_directories(llama PUBLIC "${fork}/include" PRIVATE "${fork}/src")
# a graph's leafs have no public accessor (llama-ridgefill-rewrite.cpp); hashes of side files and tokenizers
target_include_directories(llama PRIVATE "${CMAKE_BINARY_DIR}/upstream/llama.cpp/ggml/src")
target_link_libraries(llama PRIVATE vendor::hash)
ridgefill_join(llama-common "${fork}/common")
target_include_directories(llama-common PUBLIC "${fork}/common")
ridgefill_join(server-context "${fork}/server")
target_include_directories(server-context PUBLIC "${fork}/server")
