# Every library we build gets a name of its own (libllama-ridgefill.so) and one file without version links.
# The loader matches libraries by SONAME in the whole process: with upstream's names, a stock llama-cpp-python imported
# first would hand its ggml to our libllama. Wheels cannot hold links, so versioned names would be three copies.
function(ridgefill_targets folder out)
    get_property(found DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    get_property(folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    foreach(sub ${folders})
        ridgefill_targets("${sub}" more)
        list(APPEND found ${more})
    endforeach()
    set(${out} ${found} PARENT_SCOPE)
endfunction()

ridgefill_targets("${CMAKE_BINARY_DIR}/upstream/llama.cpp" upstream_targets)
set(RIDGEFILL_LIBS "")
foreach(target ${upstream_targets})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "SHARED_LIBRARY")
        set_target_properties(${target} PROPERTIES OUTPUT_NAME "${target}-ridgefill")
        set_property(TARGET ${target} PROPERTY VERSION)
        set_property(TARGET ${target} PROPERTY SOVERSION)
        set_property(TARGET ${target} PROPERTY PUBLIC_HEADER) # not shipped
        set_property(TARGET ${target} PROPERTY PRIVATE_HEADER)
        list(APPEND RIDGEFILL_LIBS ${target})
    endif()
endforeach()
