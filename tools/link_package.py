#!/usr/bin/env python3
"""Make <build>/python/ridgefill_cpp importable: links to the Python sources, to the libraries and to the programs.

usage: link_package.py PACKAGE_SOURCE BUILD
"""

import sys
from pathlib import Path


def main() -> None:
    source, build = Path(sys.argv[1]), Path(sys.argv[2])
    package = build / "python" / "ridgefill_cpp"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in source.iterdir() if path.name != "__pycache__"}
    wanted.update({"lib": build / "bin", "bin": build / "bin"})
    for path in package.iterdir():
        if path.is_symlink() and (path.name not in wanted or path.readlink() != wanted[path.name]):
            path.unlink()
    for name, target in wanted.items():
        link = package / name
        if not link.is_symlink():
            link.symlink_to(target)


if __name__ == "__main__":
    main()
