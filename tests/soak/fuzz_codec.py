"""The native codec under AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tests.soak.fuzz_codec --cases N`.

Builds the extension with both into a temporary directory, then feeds it and the Python codec the same valid and damaged
input in a child process. Any difference or invalid access ends it with exit code 1. Without a compiler that has the
sanitizers it says so and exits 77.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.fuzz.sanitizer_builds import load, say, soak


def child(directory: str, cases: int, seed: int) -> int:
    module: Any = load("protocol/codec", Path(directory))
    from anabranch.protocol.codec import core
    from tests.support.fuzz.codec_cases import Cases, borders, listed, outcome, routed, written

    assert core.NATIVE is not None and core.NATIVE.pack is module.pack
    differing = 0
    for number in range(seed, seed + cases):
        made = Cases(number)
        bodies, (values, keys, options) = made.bodies(), made.rows()
        starts = borders(made.random)
        found = [
            (
                outcome(loops.decode, bodies),
                outcome(listed, loops, bodies),
                outcome(written, loops, values, keys, options),
                outcome(routed, loops, keys or [], starts, number),
            )
            for loops in (core.PYTHON, core.NATIVE)
        ]
        if found[0] != found[1]:
            differing += 1
            say(f"seed {number}: the implementations differ")
    say(f"{cases} cases, {differing} differ")
    return 1 if differing else 0


def main(arguments: list[str] | None = None) -> int:
    return soak("tests.soak.fuzz_codec", ["protocol/codec"], child, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
