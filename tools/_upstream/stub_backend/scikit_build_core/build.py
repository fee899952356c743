"""Stands in for the real build backend while pip downloads an sdist: answers the metadata question, builds nothing."""

import os
from pathlib import Path


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name, version = os.environ["RIDGEFILL_STUB_NAME"], os.environ["RIDGEFILL_STUB_VERSION"]
    folder = Path(metadata_directory) / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return folder.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise RuntimeError("the stub backend only answers metadata questions")
