#!/bin/sh
# A glslc for tests of the ridgefill op alone: our shaders and upstream's feature tests go to the real one, every other
# shader becomes an empty program. Upstream has more than a thousand of them, and a pipeline is only made when an op asks
# for it.
#
#   cmake -DGGML_VULKAN=ON -DVulkan_GLSLC_EXECUTABLE=$PWD/tools/glslc_own.sh ...
set -eu
for argument; do
    case $argument in
    */ridgefill_*.comp | */feature-tests/*) exec "${GLSLC:-glslc}" "$@" ;;
    esac
done

out= depfile= source=
while [ $# -gt 0 ]; do
    case $1 in
    -o) out=$2 && shift ;;
    -MF) depfile=$2 && shift ;;
    *.comp) source=$1 ;;
    esac
    shift
done
# of 128 invocations: a pipeline may ask for whole subgroups of any size
empty=$(dirname "$out")/empty-program
if [ ! -e "$empty" ]; then
    printf '#version 450\nlayout(local_size_x = 128) in;\nvoid main() {}\n' | "${GLSLC:-glslc}" -fshader-stage=compute - -o "$empty.$$"
    mv "$empty.$$" "$empty"
fi
cp "$empty" "$out"
[ -z "$depfile" ] || printf '%s: %s\n' "$out" "$source" >"$depfile"
