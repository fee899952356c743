# Upstream compiles its model files in unity batches, and CMake writes those with absolute paths: the compiler cache then
# misses in every other folder (these are the slowest objects of all), and the paths end up in the wheel. The same
# batches with paths relative to llama's own include folder do neither.
get_target_property(batch_size llama UNITY_BUILD_BATCH_SIZE)
get_target_property(models llama SOURCES)
list(FILTER models INCLUDE REGEX "/src/models/[^/]+\\.cpp$")
set_target_properties(llama PROPERTIES UNITY_BUILD OFF)
set_source_files_properties(${models} TARGET_DIRECTORY llama PROPERTIES HEADER_FILE_ONLY ON)

set(number 0)
foreach(model ${models})
    math(EXPR batch "${number} / ${batch_size}")
    cmake_path(GET model FILENAME name)
    string(APPEND text_${batch} "#include \"models/${name}\"\n")
    math(EXPR number "${number} + 1")
endforeach()
foreach(index RANGE ${batch})
    set(file "${CMAKE_BINARY_DIR}/llama.cpp/src/models_${index}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${text_${index}}" @ONLY)
    target_sources(llama PRIVATE "${file}")
endforeach()
