"""The native codec under AddressSanitizer and UndefinedBehaviorSanitizer: `python -m tests.soak.fuzz_codec --cases N`.

Builds the extension with both into a directory of its own, then feeds it and its Python twin the same whole and damaged
input in a child process. Any difference, any wrong access ends it with exit code 1; without a compiler that has the
sanitizers it says so and exits 77.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anabranch" / "codec" / "_native.c"
NAME = "anabranch.codec._native"
UNAVAILABLE = 77


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def built(directory: Path) -> Path | None:
    """The extension with sanitizers; None where that cannot be done."""
    target = directory / "_native.abi3.so"
    command = [
        os.environ.get("CC", "cc"), "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
        f"-I{sysconfig.get_path('include')}", "-o", str(target), str(SOURCE),
    ]  # fmt: skip
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return None
    if made.returncode:
        say(made.stderr)
        return None
    return target


def runtime() -> str:
    """The sanitizer's library, which must be loaded before Python."""
    command = [os.environ.get("CC", "cc"), "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def child(library: str, cases: int, seed: int) -> int:
    spec = importlib.util.spec_from_loader(NAME, ExtensionFileLoader(NAME, library))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    from anabranch.codec import core
    from tests.codec_cases import Cases, borders, outcome, routed, written

    assert core.NATIVE is not None and core.NATIVE.pack is module.pack
    differing = 0
    for number in range(seed, seed + cases):
        made = Cases(number)
        bodies, (values, keys, options) = made.bodies(), made.rows()
        starts = borders(made.random)
        found = [
            (
                outcome(loops.decode, bodies),
                outcome(written, loops, values, keys, options),
                outcome(routed, loops, keys or [], starts, number),
            )
            for loops in (core.PYTHON, core.NATIVE)
        ]
        if found[0] != found[1]:
            differing += 1
            say(f"seed {number}: the twins differ")
    say(f"{cases} cases, {differing} differ")
    return 1 if differing else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.fuzz_codec")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", help=argparse.SUPPRESS)  # this is the child
    options = parser.parse_args(arguments)
    if options.library:
        return child(options.library, options.cases, options.seed)
    with tempfile.TemporaryDirectory(prefix="anabranch-fuzz-") as directory:
        library = built(Path(directory))
        if library is None:
            say("no C compiler with AddressSanitizer here: nothing was fuzzed")
            return UNAVAILABLE
        command = [sys.executable, "-m", "tests.soak.fuzz_codec", "--library", str(library)]
        command += ["--cases", str(options.cases), "--seed", str(options.seed)]
        # Python itself leaks on purpose at its end, and its own allocator would hide what lies behind a buffer.
        quiet = {"LD_PRELOAD": runtime(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
        return subprocess.run(command, cwd=ROOT, env={**os.environ, **quiet}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
