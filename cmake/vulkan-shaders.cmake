# Our Vulkan shaders join upstream's: its tool takes them from its own folder, so they are put into the unpacked tree, and
# put there again whenever one of them changes.
if(GGML_VULKAN AND NOT RIDGEFILL_STOCK)
    file(GLOB shaders CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ggml-ridgefill/vulkan/vulkan-shaders/*")
    foreach(shader ${shaders})
        cmake_path(GET shader FILENAME name)
        configure_file("${shader}"
            "${CMAKE_BINARY_DIR}/upstream/llama.cpp/ggml/src/ggml-vulkan/vulkan-shaders/${name}" COPYONLY)
    endforeach()
endif()
