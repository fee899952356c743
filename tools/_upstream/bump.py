"""Try another release: fetch it, apply the series, build, run the tests, report. The pin moves only with --write."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from .base import PIN, ROOT, Pin, UpstreamError, load_pin, sha256_file, write_if_changed
from .patch import load_series
from .source import cache_dir, download, find
from .tree import Tree


def run(args: argparse.Namespace) -> int:
    old = load_pin(args.pin)
    tarball = Path(args.source) if args.source else _fetch(old, args.version)
    pin = Pin(old.package, args.version, sha256_file(tarball), commit_of(tarball, args.version))
    build = ROOT / f"build-bump-{args.version}"
    pin_file = build / "PIN"
    write_if_changed(pin_file, pin_text(pin).encode())
    print(f"bump: {old.version} -> {pin.version}, upstream {pin.commit}, sha256 {pin.sha256}", flush=True)

    tree = Tree(build)
    tree.fetch(find(pin, str(tarball)))
    rejects: list[UpstreamError] = []
    tree.apply(load_series(), rejects=rejects)
    for error in rejects:
        print(f"bump: {error}", file=sys.stderr)
    if rejects:
        raise UpstreamError(
            f"bump: {len(rejects)} hunks do not fit {pin.version}; the others are in {tree.work}",
            f"put these in by hand there, then: python3 tools/upstream.py export NAME --build {build} --pin {pin_file}",
        )
    print(f"bump: series applies to {pin.version}", flush=True)
    if not args.no_build:
        _step(["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
               f"-DRIDGEFILL_UPSTREAM={tarball}", f"-DRIDGEFILL_PIN={pin_file}"])  # fmt: skip
        _step(["cmake", "--build", str(build)])
        _step(["ctest", "--test-dir", str(build), "--output-on-failure"])
        _step([sys.executable, "-m", "pytest", str(ROOT / "tests")], RIDGEFILL_BUILD=str(build))
        print(f"bump: {pin.version} builds and passes", flush=True)
    if args.write:
        for patch in load_series():  # line numbers move, and Last-verified is renewed
            tree.export(patch.name, [], {}, pin)
        write_if_changed(PIN, pin_text(pin).encode())
        print(f"bump: the pin is now {pin.text()}; look at git diff llama.cpp, then commit")
    else:
        print(f"bump: the pin is still {old.version}; add --write to move it")
    return 0


def pin_text(pin: Pin) -> str:
    notes = [line for line in PIN.read_text().splitlines() if line.startswith("#")]
    values = [f"{key}={getattr(pin, key)}" for key in Pin.__dataclass_fields__]
    return "\n".join(notes + values) + "\n"


def _fetch(old: Pin, version: str) -> Path:
    pin = Pin(old.package, version, "", "")
    target = cache_dir() / pin.tarball
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        download(pin, target)
    return target


def commit_of(tarball: Path, version: str) -> str:
    """The upstream commit that the release's own change log names."""
    with tarfile.open(tarball) as tar:
        for member in tar:
            if member.name.count("/") == 1 and member.name.endswith("/CHANGELOG.md"):
                text = tar.extractfile(member).read().decode()  # type: ignore[union-attr]
                section = text.partition(f"## [{version}]")[2].partition("\n## [")[0]
                match = re.search(r"llama\.cpp@([0-9a-f]{7,40})", section)
                return match[1] if match else "unknown"
    return "unknown"


def _step(command: list[str], **env: str) -> None:
    print("+ " + " ".join(command), flush=True)
    status = subprocess.run(command, stdout=sys.stderr, env={**os.environ, **env}).returncode
    if status != 0:
        raise UpstreamError(f"bump: {command[0]} failed (exit status {status})", "the lines above name the cause")
