#!/bin/sh
# Gets what builds the Vulkan backend and runs it on a software device (llvmpipe) under the validation layers, from apt as
# root. Without it tests/op/test_vulkan.py says that it is skipped.
set -eu
packages="libvulkan-dev glslc spirv-headers mesa-vulkan-drivers vulkan-validationlayers"
# shellcheck disable=SC2086
dpkg-query -W $packages >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    printf 'setup: apt-get install %s\n' "$packages" >&2
    # shellcheck disable=SC2086
    apt-get -qq update >&2 &&
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >&2 && exit 0
fi
printf 'setup: no glslc with Vulkan headers and a driver, the Vulkan backend is not tested\n' >&2
