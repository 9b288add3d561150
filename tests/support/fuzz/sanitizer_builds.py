"""Extensions built with AddressSanitizer and UndefinedBehaviorSanitizer, and a child process that uses them.

Used by the soaks of the C code.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

ROOT = Path(__file__).parents[3]
UNAVAILABLE = 77
"""Exit code if no compiler has the sanitizers."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def name_of(part: str) -> str:
    return f"anabranch.{part.replace('/', '.')}._native"


def built(part: str, directory: Path) -> Path | None:
    """The extension of one package, with sanitizers; None if it cannot be built."""
    target = directory / part / "_native.abi3.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "src" / "anabranch" / part / "_native.c"
    command = [
        os.environ.get("CC", "cc"), "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-shared", "-fPIC",
        f"-I{sysconfig.get_path('include')}", "-o", str(target), str(source),
    ]  # fmt: skip
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return None
    if made.returncode:
        say(made.stderr)
        return None
    return target


def load(part: str, directory: Path) -> object:
    """Called in the child, before the installed extension is imported."""
    name = name_of(part)
    assert name not in sys.modules
    spec = importlib.util.spec_from_loader(name, ExtensionFileLoader(name, str(directory / part / "_native.abi3.so")))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_child(module: str, parts: Sequence[str], directory: Path, arguments: Sequence[str]) -> int:
    """Build the parts and run `python -m module --built DIRECTORY …` with the sanitizers' library; returns its exit
    code.
    """
    if any(built(part, directory) is None for part in parts):
        say("no C compiler with AddressSanitizer here: nothing was fuzzed")
        return UNAVAILABLE
    command = [sys.executable, "-m", module, "--built", str(directory), *arguments]
    # Python itself leaks at exit on purpose, and its allocator would hide accesses beyond a buffer.
    quiet = {"LD_PRELOAD": _runtime(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **quiet}, check=False).returncode


def soak(module: str, parts: Sequence[str], child: Callable[[str, int, int], int], arguments: list[str] | None) -> int:
    """The command line of such a soak. `child` gets the build directory, cases and seed in the child process."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--built", help=argparse.SUPPRESS)  # this is the child
    options = parser.parse_args(arguments)
    if options.built:
        return child(options.built, options.cases, options.seed)
    with tempfile.TemporaryDirectory(prefix="anabranch-fuzz-") as directory:
        given = ["--cases", str(options.cases), "--seed", str(options.seed)]
        return run_child(module, parts, Path(directory), given)


def _runtime() -> str:
    """The sanitizer's library, which must be loaded before Python."""
    command = [os.environ.get("CC", "cc"), "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
