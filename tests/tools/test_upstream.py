"""tools/upstream.py on a made-up upstream: strict, idempotent, never losing an edit, never rebuilding for nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GRAPH = "".join(f"int graph_{i}();\n" for i in range(40))
BATCH = "".join(f"int batch_{i}();\n" for i in range(40))
HEAD = ("--description", "call sites", "--reason", "they are inside functions", "--kind", "hook")


class Checkout:
    """A copy of the tool with its own pin, series and upstream, so that a test cannot touch the real ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "llama.cpp" / "patches").mkdir(parents=True)
        (root / "llama.cpp" / "series").write_text("# order\n")
        shutil.copy(ROOT / "llama.cpp" / "PIN", root / "llama.cpp" / "PIN")
        self.upstream = root / "upstream"
        for name, text in {
            "src/llama-graph.cpp": GRAPH,
            "src/llama-batch.cpp": BATCH,
            "ggml/ggml.h": "int a;\n",
        }.items():
            (self.upstream / name).parent.mkdir(parents=True, exist_ok=True)
            (self.upstream / name).write_text(text)
        self.tree = root / "build" / "upstream" / "llama.cpp"

    def run(self, *args: str, ok: bool = True, source: Path | None = None) -> str:
        command = [sys.executable, str(self.root / "tools" / "upstream.py"), *args]
        if args[0] in ("apply", "fetch"):
            command += ["--source", str(source or self.upstream)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert (result.returncode == 0) == ok, result.stdout + result.stderr
        return result.stdout + result.stderr

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.tree / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def hook(self, patch: str, name: str, line: str) -> None:
        """Apply, put one line into an upstream file, export it."""
        self.run("apply")
        self.edit(name, line, f"{line}int hook();\n")
        self.run("export", patch, "--add", name, *HEAD)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


def test_empty_series_leaves_upstream_as_it_is_and_adds_the_missing_file(checkout: Checkout) -> None:
    checkout.run("apply")
    assert (checkout.tree / "src/llama-graph.cpp").read_text() == GRAPH
    assert (checkout.tree / "ggml/ggml.pc.in").read_text() == ""


def test_export_then_fresh_tree_gives_the_same_files(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    checkout.hook("0001-op", "ggml/ggml.h", "int a;\n")
    assert (checkout.root / "llama.cpp/series").read_text() == "# order\n0001-op\n0002-core\n"
    edited = (checkout.tree / "src/llama-graph.cpp").read_text()
    shutil.rmtree(checkout.root / "build")
    checkout.run("apply")
    assert (checkout.tree / "src/llama-graph.cpp").read_text() == edited
    assert (checkout.tree / "ggml/ggml.h").read_text() == "int a;\nint hook();\n"


def test_second_run_writes_nothing(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    before = stamps(checkout.root / "build")
    assert checkout.run("apply") == ""
    assert stamps(checkout.root / "build") == before


def test_a_changed_patch_rewrites_only_its_own_files(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    checkout.hook("0003-server", "src/llama-batch.cpp", "int batch_3();\n")
    before = stamps(checkout.tree)
    patch = checkout.root / "llama.cpp/patches/0002-core.patch"
    patch.write_text(patch.read_text().replace("+int hook();", "+int other();"))
    checkout.run("apply")
    after = stamps(checkout.tree)
    changed = [Path(name).name for name in after if before[name] != after[name]]
    assert changed == ["llama-graph.cpp"]


def test_an_edit_in_place_is_kept_until_forced(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    checkout.edit("src/llama-graph.cpp", "int graph_1();", "int mine();")
    assert "edited in place and is kept" in checkout.run("apply")
    assert "int mine();" in (checkout.tree / "src/llama-graph.cpp").read_text()
    checkout.run("apply", "--force")
    assert "int mine();" not in (checkout.tree / "src/llama-graph.cpp").read_text()


def test_a_removed_patch_gives_the_pristine_file_back(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    (checkout.root / "llama.cpp/series").write_text("# order\n")
    checkout.run("apply")
    assert (checkout.tree / "src/llama-graph.cpp").read_text() == GRAPH


def test_a_hunk_follows_moved_lines_but_not_changed_ones(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    source = checkout.upstream / "src/llama-graph.cpp"
    source.write_text("// new\n" * 5 + GRAPH)
    checkout.run("apply")
    assert "int graph_20();\nint hook();\n" in (checkout.tree / "src/llama-graph.cpp").read_text()

    source.write_text(GRAPH.replace("int graph_19();", "long graph_19();"))
    message = checkout.run("apply", ok=False)
    assert "patch 0002-core, src/llama-graph.cpp, hunk 1 of 1" in message
    assert "upstream changed these lines" in message
    assert "hint: edit" in message and "export 0002-core" in message
    assert not list(checkout.tree.rglob("*.rej"))


def test_a_hunk_that_fits_twice_is_refused(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    (checkout.upstream / "src/llama-graph.cpp").write_text("// x\n" + GRAPH + GRAPH)
    assert "stands in 2 places" in checkout.run("apply", ok=False)


def test_a_file_belongs_to_one_patch(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    message = checkout.run("export", "0003-server", "--add", "src/llama-graph.cpp", *HEAD, ok=False)
    assert "src/llama-graph.cpp belongs to patch 0002-core" in message


def test_a_hook_and_a_portability_patch_share_a_file(checkout: Checkout) -> None:
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    checkout.edit("src/llama-graph.cpp", "int graph_1();\n", "int graph_1();\nint fix();\n")
    head = ("--description", "a fix", "--reason", "old compilers", "--kind", "portability")
    checkout.run("export", "0004-portability", "--add", "src/llama-graph.cpp", *head)
    patch = (checkout.root / "llama.cpp/patches/0004-portability.patch").read_text()
    assert "+int fix();" in patch and "hook" not in patch

    checkout.run("export", "0002-core")
    assert "fix" not in (checkout.root / "llama.cpp/patches/0002-core.patch").read_text().partition("---")[2]
    checkout.run("check", "--update")
    checkout.run("apply", "--force", "--kind", "portability")
    text = (checkout.tree / "src/llama-graph.cpp").read_text()
    assert "int fix();" in text and "int hook();" not in text


def test_an_export_without_a_reason_is_refused(checkout: Checkout) -> None:
    checkout.run("apply")
    assert "head lacks Description, Reason, Kind" in checkout.run("export", "0009-x", ok=False)
    assert not (checkout.root / "llama.cpp/patches/0009-x.patch").exists()


def test_the_budget_must_be_announced(checkout: Checkout) -> None:
    checkout.run("apply")
    checkout.run("check", "--update")
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    assert "does not match the patches" in checkout.run("check", ok=False)
    assert "| 0002-core | src/llama-graph.cpp | 1 | 0 |" in checkout.run("check", "--update")
    checkout.run("check")

    checkout.edit("src/llama-graph.cpp", "int graph_20();\n", "int graph_20();\n" + "int more();\n" * 240)
    checkout.run("export", "0002-core")
    assert "patches add 241 lines, allowed: 240" in checkout.run("check", "--update", ok=False)


def test_a_stray_edit_is_reported(checkout: Checkout) -> None:
    checkout.run("apply")
    checkout.edit("src/llama-batch.cpp", "int batch_1();", "int stray();")
    assert "src/llama-batch.cpp differs from upstream and no patch says so" in checkout.run("check", "--update")


def test_a_folder_is_copied_and_never_edited(checkout: Checkout) -> None:
    before = stamps(checkout.upstream)
    checkout.hook("0002-core", "src/llama-graph.cpp", "int graph_20();\n")
    assert stamps(checkout.upstream) == before


def test_a_tarball_is_held_to_the_pin(checkout: Checkout) -> None:
    tarball = checkout.root / "llama_cpp_python-0.3.36.tar.gz"
    with tarfile.open(tarball, "w:gz") as tar:
        tar.add(checkout.upstream, "llama_cpp_python-0.3.36/vendor/llama.cpp")
    message = checkout.run("apply", ok=False, source=tarball)
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    assert found in message and "the pin allows 832db069" in message

    pin = checkout.root / "llama.cpp/PIN"
    text = pin.read_text()
    pin.write_text(text.replace(text.split("sha256=")[1][:64], found))
    checkout.run("apply", source=tarball)
    assert (checkout.tree / "src/llama-graph.cpp").read_text() == GRAPH


def test_a_wrong_folder_is_named(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "neither an sdist nor a llama.cpp tree" in checkout.run("apply", ok=False, source=tmp_path / "empty")
    assert "no such file or folder" in checkout.run("apply", ok=False, source=tmp_path / "nowhere")


def test_the_real_patches_are_announced_and_whole(tmp_path: Path) -> None:
    """The tracked series against its tracked budget; an empty build folder keeps other people's edits out of it."""
    command = [sys.executable, str(ROOT / "tools" / "upstream.py"), "check", "--build", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert result.returncode == 0, result.stderr
