"""A real model with an identity side file: no fit is needed to test what the classes do with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from llama_helpers import HEAD, N_CTX, TAIL

# threads that wait without spinning: fifty times faster when another test run shares the processors
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def text() -> str:
    """Prose of many thousand tokens that every Python has."""
    from ridgefill_cpp.bench import default_text

    return default_text()


@pytest.fixture(scope="session")
def identity(smollm2: Path, tmp_path_factory: pytest.TempPathFactory):
    """identity(split) -> the path of an identity side file for SmolLM2."""
    from ridgefill_cpp._arms import write_identity
    from ridgefill_cpp.base import base_of

    folder = tmp_path_factory.mktemp("identity")

    def make(split: int, model: Path = smollm2) -> Path:
        path = folder / f"{model.stem}-{split}.gguf"
        if not path.exists():
            write_identity(path, base_of(model), split)
        return path

    return make


@pytest.fixture(scope="session")
def make_llama(smollm2: Path, identity):
    """make_llama(**kwargs): a small SmolLM2 object; ridgefill=None leaves the side file out."""
    from ridgefill_cpp import Llama

    made = []

    def make(**kwargs):
        options = {
            "n_ctx": N_CTX,
            "n_threads": 2,
            "n_threads_batch": 2,
            "seed": 1,
            "verbose": False,
            "ridgefill": identity(20),
            "ridgefill_tail": TAIL,
            "ridgefill_head": HEAD,
            "ridgefill_min_bulk": 32,
        } | kwargs
        llm = Llama(str(smollm2), **options)
        made.append(llm)
        return llm

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="module")
def llm(make_llama):
    """One object for the tests of a module; each begins with an empty cache (see `fresh`)."""
    return make_llama()


@pytest.fixture
def fresh(llm):
    llm.reset()
    llm.set_cache(None)
    llm._ctx.kv_cache_clear()
    return llm


@pytest.fixture(scope="session")
def ids(make_llama, text: str) -> list[int]:
    """700 token ids of prose."""
    return make_llama(ridgefill=None, n_ctx=64).tokenize(text.encode())[:700]
