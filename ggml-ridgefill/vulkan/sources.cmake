# Joins the op to ggml-vulkan (`target`). cmake/vulkan-shaders.cmake has put the shaders among upstream's.
ridgefill_join(${target} "${op}/vulkan")
target_include_directories(${target} PRIVATE "${CMAKE_BINARY_DIR}/upstream/llama.cpp/ggml/src/ggml-vulkan")
