#!/usr/bin/env python3
"""Print what pyproject.toml asks for, so that no version stands in two places.

usage: requirements.py [GROUP...]     the package's own dependencies, then those of each optional group
"""

import sys
from pathlib import Path

# tomllib came with Python 3.11; pip brings its own copy of the same code for 3.10
try:
    import tomllib
except ModuleNotFoundError:
    from pip._vendor import tomli as tomllib


def main() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for group in sys.argv[1:]:
        lines += project["optional-dependencies"][group]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
