# Each tests/<folder>/test-*.cpp is one program and one ctest entry named <folder>/<name>. Tests look at internals:
# upstream's and our private headers are on their path, and on Linux the libraries export every symbol.
file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/*/test-*.cpp")
set(upstream "${CMAKE_BINARY_DIR}/upstream/llama.cpp")
foreach(source ${sources})
    cmake_path(GET source STEM name)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME group)
    set(target ridgefill-${name})
    add_executable(${target} "${source}")
    target_link_libraries(${target} PRIVATE llama ggml llama-common)
    target_compile_features(${target} PRIVATE cxx_std_17)
    target_include_directories(${target} PRIVATE
        "${PROJECT_SOURCE_DIR}/tests" "${folder}" "${PROJECT_SOURCE_DIR}/llama.cpp/src" "${PROJECT_SOURCE_DIR}/ggml-ridgefill/src"
        "${PROJECT_SOURCE_DIR}/ggml-ridgefill/cpu" "${upstream}/src" "${upstream}/ggml/src" "${upstream}/ggml/src/ggml-cpu")
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
    add_test(NAME ${group}/${name} COMMAND ${target})
    set_tests_properties(${group}/${name} PROPERTIES LABELS ${group})
endforeach()

# The side-file reader alone (no model, no llama) under AddressSanitizer and UBSan, with the same cases and mutations.
# A long run: build/bin/ridgefill-test-sidefile-sanitized 200000
include(CheckCXXSourceCompiles)
set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
set(CMAKE_REQUIRED_FLAGS "-fsanitize=address,undefined")
check_cxx_source_compiles("int main() { return 0; }" RIDGEFILL_HAS_SANITIZERS)
unset(CMAKE_REQUIRED_FLAGS)
if(RIDGEFILL_HAS_SANITIZERS)
    set(target ridgefill-test-sidefile-sanitized)
    add_executable(${target}
        "${PROJECT_SOURCE_DIR}/tests/sidefile/test-sidefile.cpp"
        "${PROJECT_SOURCE_DIR}/llama.cpp/src/llama-ridgefill-gguf.cpp"
        "${PROJECT_SOURCE_DIR}/llama.cpp/src/llama-ridgefill-sidefile.cpp"
        "${upstream}/vendor/hash/sha256/sha256.c")
    target_link_libraries(${target} PRIVATE ggml-base)
    target_compile_features(${target} PRIVATE cxx_std_17)
    target_compile_options(${target} PRIVATE ${sanitize} -O1 -g -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE ${sanitize})
    target_include_directories(${target} PRIVATE
        "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/llama.cpp/src" "${upstream}/vendor" "${upstream}/vendor/hash")
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
    file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/sanitized") # its own place for the file that the test damages
    add_test(NAME sidefile/test-sidefile-sanitized COMMAND ${target} WORKING_DIRECTORY "${CMAKE_BINARY_DIR}/sanitized")
    set_tests_properties(sidefile/test-sidefile-sanitized PROPERTIES LABELS sidefile)
else()
    message(STATUS "no AddressSanitizer here: sidefile/test-sidefile-sanitized is left out")
endif()

# upstream's test of ops with our cases, on demand: cmake --build build --target test-backend-ops
if(NOT TARGET test-backend-ops AND EXISTS "${upstream}/tests/test-backend-ops.cpp")
    add_executable(test-backend-ops EXCLUDE_FROM_ALL "${upstream}/tests/test-backend-ops.cpp")
    target_link_libraries(test-backend-ops PRIVATE llama ggml llama-common)
    target_compile_features(test-backend-ops PRIVATE cxx_std_17)
    set_target_properties(test-backend-ops PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
endif()
if(TARGET test-backend-ops)
    target_include_directories(test-backend-ops PRIVATE "${PROJECT_SOURCE_DIR}/tests/op")
endif()

# hooked and tested, but not shipped: llama-cli replaces it upstream
add_custom_target(ridgefill-test-programs ALL DEPENDS llama-completion ggml-rpc-server)
