# The Python package, twice from the same parts: <build>/python for work in this tree (links, nothing copied), and the
# wheel (component "python"; scikit-build-core adds python/ridgefill_cpp itself).
set(RIDGEFILL_PROGRAMS llama-server llama-cli llama-bench llama-perplexity llama-quantize)

# the libraries that those programs and the Python classes load
set(shipped llama llama-common mtmd llama-server-impl llama-cli-impl llama-bench-impl llama-perplexity-impl
    llama-quantize-impl)
foreach(target ${RIDGEFILL_LIBS})
    if(target MATCHES "^ggml")
        list(APPEND shipped ${target})
    endif()
endforeach()

set(bindings_from "${CMAKE_BINARY_DIR}/upstream/llama_cpp")
set(bindings "${CMAKE_BINARY_DIR}/python/ridgefill_cpp/_llama_cpp")
set(vendor_script "${PROJECT_SOURCE_DIR}/tools/vendor_bindings.py")
if(IS_DIRECTORY "${bindings_from}")
    execute_process(COMMAND "${Python3_EXECUTABLE}" "${vendor_script}" "${bindings_from}" "${bindings}" RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "the Python classes of llama-cpp-python could not be taken over (exit status ${result})")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${vendor_script}")
else()
    message(STATUS "python package: left out, a bare llama.cpp tree has no Python classes")
endif()

add_custom_target(ridgefill-python ALL
    COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/link_package.py"
            "${PROJECT_SOURCE_DIR}/python/ridgefill_cpp" "${CMAKE_BINARY_DIR}"
    DEPENDS ${RIDGEFILL_PROGRAMS} ${shipped}
    COMMENT "Linking the Python package into ${CMAKE_BINARY_DIR}/python"
    VERBATIM)

install(TARGETS ${RIDGEFILL_PROGRAMS} RUNTIME DESTINATION ridgefill_cpp/bin COMPONENT python)
install(TARGETS ${shipped} LIBRARY DESTINATION ridgefill_cpp/lib COMPONENT python
    RUNTIME DESTINATION ridgefill_cpp/lib COMPONENT python)
if(IS_DIRECTORY "${bindings_from}")
    install(DIRECTORY "${bindings}" DESTINATION ridgefill_cpp COMPONENT python PATTERN __pycache__ EXCLUDE)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/NOTICE" "${CMAKE_BINARY_DIR}/upstream/llama.cpp/LICENSE"
    DESTINATION ridgefill_cpp/licenses COMPONENT python)
