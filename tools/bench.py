#!/usr/bin/env python3
"""Time to the first token of SmolLM2, fill off and on by turns, at 2048, 4096 and 8000 tokens (make bench).

usage: bench.py [--split 10|20] [any option of `ridgefill bench`]

Uses the demo's model, projectors and held-out text, fitting them first if they are not there; writes build/bench.json.
"""

from __future__ import annotations

import sys

from _demo import assets


def main(argv: list[str]) -> int:
    split = 10
    if argv[:1] == ["--split"]:
        if argv[1:2] not in [[str(s)] for s in assets.SPLITS]:
            print(f"bench: --split: found {argv[1:2]}, allowed {assets.SPLITS}", file=sys.stderr)
            return 2
        split, argv = int(argv[1]), argv[2:]
    assets.use_build()
    from ridgefill_cpp import cli

    model = assets.model()
    files = assets.projectors(model, assets.texts())
    fixed = ["bench", "-m", str(model), "-p", str(files[split]), "--json", str(assets.BUILD / "bench.json")]
    fixed += ["--lengths", "2048,4096,8000", "--tail", str(assets.TAIL), "--head", str(assets.HEAD)]
    return cli.main([*fixed, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
