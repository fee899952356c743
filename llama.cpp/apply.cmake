# Gets the pinned upstream into <build>/upstream and applies the series there. tools/upstream.py does the work, so that
# a developer's command line, CI and this file cannot disagree; a second run writes nothing.
find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter)

function(ridgefill_pin key out)
    file(STRINGS "${RIDGEFILL_PIN}" line REGEX "^${key}=")
    string(REGEX REPLACE "^${key}=" "" value "${line}")
    set(${out} "${value}" PARENT_SCOPE)
endfunction()

function(ridgefill_get_upstream)
    set(command "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/upstream.py" apply
        --build "${CMAKE_BINARY_DIR}" --pin "${RIDGEFILL_PIN}")
    if(RIDGEFILL_UPSTREAM)
        list(APPEND command --source "${RIDGEFILL_UPSTREAM}")
    endif()
    if(RIDGEFILL_STOCK) # a stock build that crashes on this machine is no yardstick
        list(APPEND command --kind portability)
    endif()
    execute_process(COMMAND ${command} RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "upstream not ready (exit status ${result}); the lines above name the cause and the next command")
    endif()

    # A changed pin, series or patch must reach the tree before the next compile.
    file(GLOB patches CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/llama.cpp/patches/*.patch")
    file(GLOB tools "${PROJECT_SOURCE_DIR}/tools/_upstream/*.py")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
        "${RIDGEFILL_PIN}" "${PROJECT_SOURCE_DIR}/llama.cpp/series" ${patches} ${tools})
endfunction()
