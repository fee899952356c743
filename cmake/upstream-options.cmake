# Upstream's options as this project needs them. Everything else keeps upstream's default and can be set with -D.
function(ridgefill_force name value why)
    set(${name} ${value} CACHE BOOL "${why}" FORCE)
endfunction()

function(ridgefill_default name value why)
    if(NOT DEFINED CACHE{${name}} AND NOT DEFINED ${name})
        set(${name} ${value} CACHE BOOL "${why}")
    endif()
endfunction()

ridgefill_force(BUILD_SHARED_LIBS ON "Python loads the same libraries as the programs")
ridgefill_force(LLAMA_BUILD_COMMON ON "the programs need it")
ridgefill_force(LLAMA_BUILD_TOOLS ON "llama-bench, llama-perplexity, llama-quantize")
ridgefill_force(LLAMA_BUILD_SERVER ON "llama-server, llama-cli")
ridgefill_force(LLAMA_BUILD_APP OFF "one program per job is enough")
ridgefill_force(LLAMA_BUILD_UI ${RIDGEFILL_UI} "the web page needs npm")
ridgefill_force(LLAMA_USE_PREBUILT_UI OFF "no network at build time")
ridgefill_default(GGML_RPC ON "llama-server --rpc: layers on other machines")
ridgefill_default(LLAMA_BUILD_TESTS OFF "upstream's tests")
ridgefill_default(LLAMA_BUILD_EXAMPLES OFF "upstream's examples")
ridgefill_default(LLAMA_TOOLS_INSTALL OFF "we install our own selection")

find_package(OpenSSL QUIET)
ridgefill_default(LLAMA_OPENSSL ${OPENSSL_FOUND} "HTTPS in the server")

# What --version prints. Without these upstream would print the last commit of whatever repository the build folder
# lies in, and recompile after each of our commits.
ridgefill_pin(commit LLAMA_BUILD_COMMIT)
set(LLAMA_BUILD_NUMBER 0)
set(GIT_EXECUTABLE "${CMAKE_COMMAND}" -E true)
set(ENV{GIT_CEILING_DIRECTORIES} "${CMAKE_BINARY_DIR}/upstream")

# Programs and libraries find each other in the build tree (all in bin/) and in the wheel (bin/ and lib/).
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib")
if(APPLE)
    set(CMAKE_INSTALL_RPATH "@loader_path;@loader_path/../lib")
endif()

# Stock llama-cpp-python may live in the same process. GNU unique symbols (statics of inline functions) would be shared
# between its libraries and ours, although the classes behind them differ.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT RIDGEFILL_STOCK)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique>)
endif()
