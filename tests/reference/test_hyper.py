"""qwen4exp: what its maps read and predict, and the layout of a published folder, on the small random model.

The model has four residual streams of 256 channels, an n-gram layer at 0 and full attention at odd layers.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

N, STREAMS, SPLIT, LAYERS, HEAD, TAIL, ROWS = 256, 4, 3, 8, 16, 32, 144
BULK = range(HEAD, (ROWS - TAIL) // 64 * 64)


@pytest.fixture(scope="module")
def model(program, tmp_path_factory) -> Path:
    return write_model(program, tmp_path_factory.mktemp("qwen4exp") / "model.gguf")


def write_model(program, path: Path, *more: str) -> Path:
    subprocess.run(
        [program("ridgefill-test-archs"), "--write", "qwen4exp", path, *more], check=True, capture_output=True
    )
    return path


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(4).integers(0, 128, ROWS).tolist()


@pytest.fixture(scope="module")
def captured(model: Path, ids):
    """The stream entering layer 3 [rows, 1024], and what layers 3 to 7 read [rows, 256] each."""
    from ridgefill_cpp.fit.capture import Capture

    with Capture(model, SPLIT, "block_input", range(SPLIT, LAYERS), 256, threads=1) as capture:
        x, ys = capture.run(ids)
        return x.copy(), [y.copy() for y in ys]


def read_connection(model: Path, layer: int, streams: np.ndarray) -> np.ndarray:
    """The attention side's connection read of a layer, in NumPy; streams [rows, 4, 256]."""
    from ridgefill_cpp.gguf_reader import read_gguf

    gguf = read_gguf(model, model=True)

    def weight(name: str) -> np.ndarray:
        info = gguf.tensors[f"blk.{layer}.hc_attn_{name}.weight"]
        return gguf.read(info.name).view(np.float32).reshape(info.ne[::-1]).astype(np.float64)

    x = streams.astype(np.float64)
    x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-5) * weight("norm").reshape(STREAMS, N)
    low = x.reshape(len(x), -1) @ weight("down").T / STREAMS
    gate = (low / (1 + np.exp(-low))) @ weight("up").T
    return (x / (1 + np.exp(-gate.reshape(x.shape)))).mean(axis=1)


def test_the_stream_is_stream_major(model: Path, captured) -> None:
    """Row = stream * 256 + channel: only so does the layer's own read of it give the block's input."""
    x, ys = captured
    assert x.shape == (ROWS, STREAMS * N) and ys[0].shape == (ROWS, N)
    wanted = ys[0]
    peak = np.abs(wanted).max()
    found = read_connection(model, SPLIT, x.reshape(ROWS, STREAMS, N))
    assert np.abs(found - wanted).max() < 1e-4 * peak  # float32 against float64 through two small products
    other = read_connection(model, SPLIT, x.reshape(ROWS, N, STREAMS).swapaxes(1, 2))
    assert np.abs(other - wanted).max() > 0.1 * peak
    # the streams differ, so a swap of two would show
    parts = x.reshape(ROWS, STREAMS, N)
    assert all(np.abs(parts[:, i] - parts[:, j]).max() > 0.01 for i in range(STREAMS) for j in range(i))


def stream_of(layer: int) -> int:
    return layer % STREAMS


def published_folder(path: Path, split: int = SPLIT) -> Path:
    """Map L copies stream L % 4 and adds L: W [256, 1024] with a block of ones, as int8 and a bf16 scale of 2^-6."""
    from ridgefill_cpp.folder import sha256_of
    from ridgefill_cpp.safetensors_io import NewTensor, write_safetensors

    path.mkdir()
    for layer in range(split, LAYERS):
        codes = np.zeros((N, STREAMS * N), np.int8)
        codes[:, stream_of(layer) * N :][:, :N] = 64 * np.eye(N, dtype=np.int8)
        scale = np.full((N, STREAMS * N // 128), 0x3C80, np.uint16)
        bias = np.full(N, np.float32(layer).view(np.uint32) >> 16, np.uint16)
        tensors = {"codes": ("I8", codes), "scale": ("BF16", scale), "bias": ("BF16", bias)}
        new = [
            NewTensor(f"proj.{layer}.{name}", kind, data.shape, lambda data=data: [data])
            for name, (kind, data) in tensors.items()
        ]
        write_safetensors(path / f"proj8.L{layer}.safetensors", {"format": "ridgefill-projector-1"}, new)
    states = [
        NewTensor(f"st.{layer}", "F32", (2, 128, 128), lambda: [np.ones((2, 128, 128), np.float32)])
        for layer in range(split, LAYERS)
        if layer % 2 == 0
    ]
    write_safetensors(path / "correction.safetensors", {"format": "ridgefill-projector-1"}, states)
    manifest = {
        "format": 1,
        "adapter": "qwen4exp",
        "split": split,
        "stream": "hc",
        "stream_width": STREAMS * N,
        "block_in_width": N,
        "layers": {str(layer): "full_attn" if layer % 2 else "recurrent" for layer in range(split, LAYERS)},
        "projector": {"dtype": "i8", "layout": "i8_row128"},
        "files": {file.name: sha256_of(file) for file in sorted(path.iterdir())},
    }
    (path / "ridgefill.json").write_text(json.dumps(manifest))
    return path


class Watch:
    """Copies of named tensors while a graph runs."""

    def __init__(self, names: list[str]) -> None:
        from ridgefill_cpp._llama_cpp import llama_cpp as base

        lib = base._lib
        lib.ggml_get_name.argtypes, lib.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
        lib.ggml_nbytes.argtypes, lib.ggml_nbytes.restype = [ctypes.c_void_p], ctypes.c_size_t
        lib.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self.lib, self.names = lib, set(names)
        self.found: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self.callback = base.ggml_backend_sched_eval_callback(self.see)

    def see(self, tensor: int, ask: bool, _: object) -> bool:
        name = self.lib.ggml_get_name(tensor).decode()
        if name in self.names and not ask:
            data = np.empty(self.lib.ggml_nbytes(tensor) // 4, np.float32)
            self.lib.ggml_backend_tensor_get(tensor, data.ctypes.data, 0, data.nbytes)
            self.found[name].append(data)
        return name in self.names or not ask


def test_published_folder(model: Path, ids, captured, tmp_path: Path) -> None:
    from ridgefill_cpp import _capi
    from ridgefill_cpp._llama_cpp import llama_cpp as base
    from ridgefill_cpp._projector import make_params
    from ridgefill_cpp._session import Session
    from ridgefill_cpp.convert import Options, convert

    side = tmp_path / "side.gguf"
    convert(published_folder(tmp_path / "folder"), side, Options("i8", "", model, "", False))
    late = range(SPLIT + 1, LAYERS)
    watch = Watch([f"ridgefill-{layer}" for layer in late])

    class Watched(Session):
        def _new_context(self, n_ctx: int, n_ubatch: int) -> None:
            params = base.llama_context_default_params()
            params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, self.n_batch, 512, 1
            params.n_threads = params.n_threads_batch = 1
            params.cb_eval = watch.callback
            self._ctx = base.llama_init_from_model(self._model, params)

    with Watched(model, 256) as session:
        projector = session.load(side)
        assert (projector.target, projector.n_maps, projector.n_states) == ("block_input", 4, 2)
        session.attach(projector, make_params("speed", TAIL, HEAD, 1))
        for found in watch.found.values():
            found.clear()
        for _ in session.decode(ids, range(ROWS - 1, ROWS), (HEAD, BULK.stop)):
            pass
        assert session.counts().n_filled == len(BULK)
        assert _capi.llama_ridgefill_split(projector._pointer) == SPLIT
    x = captured[0][BULK.start : BULK.stop].astype(np.float64)
    for layer in late:
        (found,) = watch.found[f"ridgefill-{layer}"]
        begin = stream_of(layer) * N
        wanted = x[:, begin : begin + N] + layer
        # inputs are rounded to int8 per row and group of 128: half a step of the group's largest value
        steps = np.abs(x[:, begin : begin + N]).reshape(len(x), -1, 128).max(axis=2).repeat(128, axis=1) / 127
        assert (np.abs(found.reshape(wanted.shape) - wanted) <= 0.51 * steps + 1e-5).all(), layer
        swapped = x[:, ((stream_of(layer) + 1) % STREAMS) * N :][:, :N] + layer
        assert np.abs(found.reshape(wanted.shape) - swapped).max() > 10 * steps.max()


def test_split_at_the_ngram_layer_is_refused(program, tmp_path: Path) -> None:
    from ridgefill_cpp._session import Session
    from ridgefill_cpp.convert import Options, convert
    from ridgefill_cpp.errors import RidgefillError
    from ridgefill_cpp.gguf_reader import read_gguf
    from ridgefill_cpp.sidefile import open_sidefile

    for ngram_layer, split, fits in ((4, 3, False), (4, 4, False), (4, 5, True), (2, 3, True)):
        model = tmp_path / f"{ngram_layer}.gguf"
        if not model.exists():
            write_model(program, model, "--ngram-layer", str(ngram_layer))
        folder, side = tmp_path / f"{ngram_layer}-{split}", tmp_path / f"{ngram_layer}-{split}.gguf"
        convert(published_folder(folder, split), side, Options("i8", "", None, "qwen4exp", False))
        with Session(model, 64) as session:
            if fits:
                assert session.load(side).split == split
                open_sidefile(side, model=read_gguf(model, model=True))
                continue
            with pytest.raises(RidgefillError) as error:
                session.load(side)
            assert error.value.code == "split-ngram"
            with pytest.raises(RidgefillError) as error:
                open_sidefile(side, model=read_gguf(model, model=True))
            assert error.value.code == "split-ngram"
