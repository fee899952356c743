"""Limits the threads of the BLAS that numpy has loaded, without a further package."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy  # noqa: F401  (whose BLAS is meant: it has to be loaded)

SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
)


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_blas(threads: int) -> bool:
    """Sets the number of threads of every BLAS in this process; False when none was found (then it keeps its own)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    files = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "blas" in line or "mkl_rt" in line}
    done = False
    for file in sorted(files):
        try:
            library = ctypes.CDLL(file)
        except OSError:
            continue
        for name in SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(threads))
                done = True
                break
    return done
