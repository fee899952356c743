"""The tools that measure: the models they make have the published sizes, and a small run of each gives its table."""

from __future__ import annotations

import csv
import json
from math import prod
from pathlib import Path

import bench_op
import e2e_gpu
import pytest
from _e2e.random_files import write_model
from _e2e.shapes import SHAPES
from ridgefill_cpp.flops import Layer, dims_of


@pytest.mark.parametrize(("name", "billions"), [("llama-8b", 8.03), ("qwen3-8b", 8.19), ("qwen35-27b", 26.9)])
def test_a_shape_has_the_published_number_of_weights(name: str, billions: float) -> None:
    assert sum(prod(ne) for _, ne, _ in SHAPES[name]().tensors) == pytest.approx(billions * 1e9, rel=1e-3)


def test_a_delta_net_is_counted_from_its_tensors(tmp_path: Path) -> None:
    shape = SHAPES["qwen35-27b"]()
    # four layers of it, narrow: 6 heads of 128 and 2 groups, so 6 * 128 values and 2 * 2 * 128 for queries and keys
    small = {"embedding_length": 256, "block_count": 4, "vocab_size": 64, "ssm.time_step_rank": 6, "ssm.group_count": 2}
    keys = {**shape.keys, **{name: ("u32", value) for name, value in small.items()}}
    shape.keys, shape.tensors = keys, []
    for name, n_out in (("attn_qkv", 1280), ("attn_gate", 768), ("ssm_alpha", 6), ("ssm_beta", 6)):
        for layer in range(4):
            shape.matrix(f"blk.{layer}.{name}", 256, n_out)
    for layer in range(4):
        shape.tensors.append((f"blk.{layer}.ssm_conv1d.weight", (4, 1280), "small"))
    shape.matrix("token_embd", 256, 64)
    write_model(tmp_path / "m.gguf", shape, "q8_0")
    state = 256 * (1280 + 6 + 6) + 4 * 1280
    assert dims_of(tmp_path / "m.gguf").layers == (Layer(state + 256 * 768, state, 0, scan=3 * 6 * 128 * 128),) * 4


def test_whole_prompts_of_a_small_model(build: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    fixed = ["--shapes", "tiny", "--weights", "q8_0", "--lengths", "512", "--tail", "128", "--reps", "1"]
    assert e2e_gpu.main([*fixed, "--device", "cpu", "--folder", str(tmp_path), "--csv", str(output)]) == 0
    rows = list(csv.DictReader(line for line in output.open() if not line.startswith("#")))
    assert [(row["n_prompt"], row["n_filled"]) for row in rows] == [("512", str(512 - 128 - 16))]
    # 2 of 6 layers for 368 of 512 rows: the other four cost a bulk row a tenth of a layer
    assert float(rows[0]["ideal"]) == pytest.approx(1.73, abs=0.15)
    assert not list(tmp_path.glob("*.gguf"))


def test_whole_prompts_are_compared(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, logits = tmp_path / "rows.csv", str(tmp_path / "logits.npz")
    fixed = ["--shapes", "tiny", "--weights", "q4_k", "--lengths", "256", "--tail", "64", "--reps", "1"]
    fixed += ["--device", "cpu", "--folder", str(tmp_path), "--csv", str(output)]
    assert e2e_gpu.main([*fixed, "--logits", logits]) == 0
    assert e2e_gpu.main([*fixed, "--placement", "device,host", "--against", logits]) == 0
    assert capsys.readouterr().out.count("NMSE 0.0e+00") == 4  # stock and fill with either placement
    rows = list(csv.DictReader(line for line in output.open() if not line.startswith("#")))
    assert [row["maps"] for row in rows] == ["i8", "i8-host"]


def test_the_op_beside_others(program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    name = "ridgefill-test-backend-ridgefill"
    (tmp_path / "bin" / name).symlink_to(bench_op.BUILD / "bin" / name)
    monkeypatch.setattr(bench_op, "BUILD", tmp_path)
    output = tmp_path / "op.csv"
    fixed = ["--shapes", "256x64", "--rows", "1,33", "--time", "0.01", "--threads", "1"]
    assert bench_op.main([*fixed, "--csv", str(output), "--commit", "test"]) == 0
    rows = json.loads((tmp_path / "bench-op.json").read_text())
    assert {(row["type"], row["rows"]) for row in rows} == {(t, r) for t in bench_op.WEIGHT_BYTES for r in (1, 33)}
    assert all(set(row) == {"backend", "type", "k", "n", "rows", "us", "tops"} and row["us"] > 0 for row in rows)
    assert bench_op.least_bytes("q8_0", 256, 64, 33) == 256 * 64 * 34 // 32 + 4 * 33 * (256 + 64)
    assert len(output.read_text().splitlines()) == 2 + len(rows)
