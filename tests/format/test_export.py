"""Export: the published form back, byte-reproducible, and convert - export - convert gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp import int8
from ridgefill_cpp.convert import Options, convert
from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.export import export
from ridgefill_cpp.gguf_types import F32
from ridgefill_cpp.gguf_writer import Tensor
from ridgefill_cpp.inspection import prove
from ridgefill_cpp.layout import Fit, layer_tensor, map_parts
from ridgefill_cpp.safetensors_io import read_safetensors, write_safetensors
from ridgefill_cpp.sidefile import SideFile, open_sidefile, write_sidefile
from ridgefill_cpp.source import open_source
from toys import N, folder_tensors, new, toy_file, toy_folder, toy_model


@pytest.mark.parametrize("form", ["i8", "bf16"])
@pytest.mark.parametrize("with_base", [False, True])
def test_there_and_back(tmp_path: Path, form: str, with_base: bool) -> None:
    model = toy_model(tmp_path / "model.gguf")
    options = Options(form, base=model if with_base else None)
    folder = toy_folder(tmp_path / "f", form)
    convert(folder, tmp_path / "a.gguf", options)
    notes = export(tmp_path / "a.gguf", tmp_path / "g")
    assert notes == []
    for base in (None, model):  # what --base said once need not be said again
        convert(tmp_path / "g", tmp_path / "b.gguf", replace(options, base=base if with_base else None, force=True))
        assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    for file in folder.glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "g" / file.name).read_bytes(), file.name
    prove(open_sidefile(tmp_path / "b.gguf"), open_source(tmp_path / "g"))
    export(tmp_path / "b.gguf", tmp_path / "h")
    for file in (tmp_path / "g").iterdir():
        assert file.read_bytes() == (tmp_path / "h" / file.name).read_bytes()


def test_q8_0_goes_back_to_codes(tmp_path: Path) -> None:
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options("q8_0"))
    export(tmp_path / "a.gguf", tmp_path / "g")
    name = "proj8.L3.safetensors"
    assert (tmp_path / "g" / name).read_bytes() == (tmp_path / "f" / name).read_bytes()


def requantised(tmp_path: Path) -> Path:
    """A Q8_0 side file whose blocks of 32 have scales of their own."""
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options("q8_0"))
    side = open_sidefile(tmp_path / "a.gguf")
    tensors = []
    for name, info in side.gguf.tensors.items():
        data = side.gguf.read(name)
        if name.endswith(".weight") and ".blk" not in name and info.type_name == "Q8_0":
            data[0:2] = np.array([0.5], "<f2").view(np.uint8)
        tensors.append(Tensor(name, info.type, info.ne, lambda data=data: [data]))
    write_sidefile(tmp_path / "r.gguf", side.header, tensors)
    return tmp_path / "r.gguf"


def test_requantised_q8_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RidgefillError) as caught:
        export(requantised(tmp_path), tmp_path / "g")
    assert caught.value.code == "export-q8_0" and not (tmp_path / "g").exists()
    assert not list(tmp_path.glob(".*"))


def fitted(tmp_path: Path, n_in: int = 128) -> SideFile:
    """A side file as `ridgefill fit` writes it: no map of the split layer, float32 biases, no manifest."""
    convert(toy_file(tmp_path / "s.safetensors", 128, n_in), tmp_path / "s.gguf", Options(architecture="llama"))
    side = open_sidefile(tmp_path / "s.gguf")
    fit = Fit(rows=1000, head=16, layers=(3,), lambdas=(0.01,), cosine=(0.9,), text_sha256="ab" * 32, prior="zero")
    header = replace(side.header, split=2, layers=(3,), target="layer_input", fit=fit)
    tensors = []
    for part, (kind, ne) in map_parts("i8", n_in, 128).items():
        data = side.array(layer_tensor(3, part))
        data = data + np.float32(1e-5) if kind == F32 else data
        tensors.append(Tensor(layer_tensor(3, part), kind, ne, lambda data=data: [data]))
    write_sidefile(tmp_path / "fit.gguf", header, tensors)
    return open_sidefile(tmp_path / "fit.gguf")


def test_fitted_file(tmp_path: Path) -> None:
    side = fitted(tmp_path)
    notes = export(side.path, tmp_path / "g")
    assert [n.split(":")[0] for n in notes] == ["bias-rounded", "no-split-map"]
    convert(tmp_path / "g", tmp_path / "b.gguf", Options())
    again = open_sidefile(tmp_path / "b.gguf")
    assert again.header == side.header
    assert (again.weight(3) == side.weight(3)).all()
    assert np.allclose(again.bias(3), side.bias(3), rtol=2**-8)
    export(again.path, tmp_path / "h")
    convert(tmp_path / "h", tmp_path / "c.gguf", Options())
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()


def test_short_group_is_refused(tmp_path: Path) -> None:
    convert(toy_file(tmp_path / "s.safetensors", 64, 576), tmp_path / "s.gguf", Options(architecture="llama"))
    with pytest.raises(RidgefillError) as caught:
        export(tmp_path / "s.gguf", tmp_path / "g")
    assert caught.value.code == "export-width"


def test_existing_output(tmp_path: Path) -> None:
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options())
    (tmp_path / "g").mkdir()
    export(tmp_path / "a.gguf", tmp_path / "g")  # an empty folder will do
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for folder, force in (("g", False), ("mine", False), ("mine", True), ("absent/g", False)):
        with pytest.raises(RidgefillError) as caught:
            export(tmp_path / "a.gguf", tmp_path / folder, force)
        assert caught.value.code == ("no-folder" if "absent" in folder else "output-exists")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    export(tmp_path / "a.gguf", tmp_path / "g", force=True)


@pytest.mark.parametrize(
    "block",
    [3, [], {}, {"general.architecture": "llama"}, {"ridgefill.split": True}, {"ridgefill.fit.lambda": ["x"]}],
)
def test_damaged_keys_of_an_export(tmp_path: Path, block: object) -> None:
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options())
    export(tmp_path / "a.gguf", tmp_path / "g")
    manifest = json.loads((tmp_path / "g" / "ridgefill.json").read_text())
    good = manifest["gguf"]
    manifest["gguf"] = {**good, **block} if isinstance(block, dict) and block else block
    (tmp_path / "g" / "ridgefill.json").write_text(json.dumps(manifest))
    with pytest.raises(RidgefillError) as caught:
        convert(tmp_path / "g", tmp_path / "b.gguf", Options())
    assert caught.value.code in ("manifest", "not-ridgefill", "key-missing", "key-type")


def test_published_sizes_of_headers(tmp_path: Path) -> None:
    """Flash-Next's files have headers of 440, 1,632 and 432 bytes; ours have too, with metadata of that length."""
    credit = {"name": "n" * 36, "authors": "a" * 30, "license": "Apache-2.0", "doi": "10.5281/zenodo.23890247"}
    metadata = {"format": "ridgefill-projector-1", **credit}
    late = [layer for layer in range(24, 48) if layer % 4 != 3]

    def empty(name: str, dtype: str, *shape: int) -> object:
        return replace(new(name, dtype, np.zeros(1)), shape=shape, data=lambda: [])

    for layer in (24, 47):
        maps = [("codes", "I8", 2560, 10240), ("scale", "BF16", 2560, 80), ("bias", "BF16", 2560)]
        write_safetensors(
            tmp_path / "m", metadata, [empty(f"proj.{layer}.{n}", *rest) for n, *rest in maps], force=True
        )
        assert (tmp_path / "m").stat().st_size == 440
    write_safetensors(tmp_path / "c", metadata, [empty(f"st.{layer}", "F32", 48, 128, 128) for layer in late])
    assert (tmp_path / "c").stat().st_size == 1632
    names = ("score", "score_none", "score_all")
    write_safetensors(tmp_path / "r", metadata, [empty(name, "F32", 248320) for name in names])
    assert (tmp_path / "r").stat().st_size == 432


def test_stock_reader_agrees(tmp_path: Path) -> None:
    import safetensors.numpy

    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options())
    export(tmp_path / "a.gguf", tmp_path / "g")
    loaded = safetensors.numpy.load_file(tmp_path / "g" / "correction.safetensors")
    (state,) = folder_tensors()["correction.safetensors"]
    assert (loaded["st.2"] == next(iter(state.data()))).all()
    ours = read_safetensors(tmp_path / "g" / "proj8.L2.safetensors")
    assert ours.metadata["authors"] == "A. Example, B. Example"
    assert list(ours.tensors) == ["proj.2.bias", "proj.2.scale", "proj.2.codes"]
    codes = ours.tensors["proj.2.codes"].rows()
    assert codes.shape == (N, 128) and codes.dtype == np.int8
    assert int8.bf16_to_f32(ours.tensors["proj.2.scale"].rows(3, 5)).shape == (2, 1)
