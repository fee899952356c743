#!/bin/sh
# Compiles the CUDA kernels as HIP device code, without a ROCm installation, and looks at the instructions: each device must
# use its own matrix or dot-product instruction and keep its registers. Prints one line per kernel.
#
#   tools/check_hip.sh [CLANG]      default: clang++-19 (Debian: clang-19, libamdhip64-dev)
set -eu
clang=${1:-clang++-19}
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/kernels.hip" <<'SOURCE'
#include "ridgefill-quantize.cuh"
#include "ridgefill-tile.cuh"
#include "ridgefill-vec.cuh"
// a launcher that is used keeps its kernels
const void * launchers[] = { (void *) ridgefill_quantize, (void *) ridgefill_vec, (void *) ridgefill_tile };
SOURCE

status=0
check() { # device, instruction of the matrix kernel, of the kernel for few rows
    "$clang" -x hip --offload-arch="$1" --cuda-device-only -nogpulib -std=c++17 -O3 -I"$root/ggml-ridgefill/cuda" \
        -S "$folder/kernels.hip" -o "$folder/$1.s"
    awk -v device="$1" -v wanted_tile="$2" -v wanted_vec="$3" '
        /^_Z[A-Za-z0-9_]*ridgefill[A-Za-z0-9_]*:/ {
            kernel = $1
            sub(/^_ZL?[0-9]+ridgefill_/, "", kernel)
            sub(/:$/, "", kernel)
            sub(/Ev.*$/, "", kernel)
            sub(/_kernelI/, " ", kernel)
            gsub(/L[ib]/, "", kernel)
            gsub(/E/, " ", kernel)
            sub(/15HIP_vector_typeIfLj4/, "float4", kernel)
            found = 0
        }
        kernel != "" && ((kernel ~ /^tile/ && index($1, wanted_tile) == 1) || (kernel ~ /^vec/ && index($1, wanted_vec) == 1)) { found++ }
        /^; NumVgprs:/    { registers = $3 }
        /^; ScratchSize:/ { scratch = $3 }
        /^; Occupancy:/ && kernel != "" {
            bad = scratch > 0 || (kernel ~ /^(tile|vec)/ && found == 0)
            uses = kernel ~ /^tile/ ? ", " found " x " wanted_tile : kernel ~ /^vec/ ? ", " found " x " wanted_vec : ""
            printf "%-8s %-20s %3d registers, scratch %d, occupancy %2d%s%s\n", device, kernel, registers, scratch, $3, uses,
                bad ? "   FAIL" : ""
            failed += bad
            n++
            kernel = ""
        }
        END { exit failed > 0 || n < 9 }' "$folder/$1.s" || { status=1; echo "$1: FAIL"; }
}

check gfx1201 v_wmma_i32_16x16x16_iu8 v_dot4_i32_iu8
check gfx1100 v_wmma_i32_16x16x16_iu8 v_dot4_i32_iu8
check gfx1030 v_dot4c_i32_i8          v_dot4c_i32_i8
check gfx942  v_mfma_i32_16x16x32_i8  v_dot4c_i32_i8
exit $status
