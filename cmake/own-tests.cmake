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

# hooked and tested, but not shipped: llama-cli replaces it upstream
add_custom_target(ridgefill-test-programs ALL DEPENDS llama-completion)
