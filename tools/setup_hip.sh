#!/bin/sh
# Gets what compiles the HIP kernels (they are compiled for four devices, never run): clang-19 and the HIP headers, from apt
# as root. Without them tests/op/test_hip.py says that it is skipped.
set -eu
command -v clang++-19 >/dev/null && [ -e /usr/include/hip/hip_runtime.h ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    printf 'setup: apt-get install clang-19 libamdhip64-dev\n' >&2
    apt-get -qq update >&2 &&
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends clang-19 libamdhip64-dev >&2 && exit 0
fi
printf 'setup: no clang-19 with the HIP headers, the HIP kernels are not compiled\n' >&2
