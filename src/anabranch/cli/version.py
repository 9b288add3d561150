"""What `anabranch --version` says: the version, and whether the C code is in use. Imports almost nothing.

A broker logs what its own modules have loaded (`node/native_code.py`). Loading those here would take a hundred times
as long, so the extensions are loaded by their files.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os

import anabranch

CODEC = "protocol/codec/_native"  # its execution imports half of the package, so loading it must do
EXTENSIONS = {"protocol": "protocol/_native", "codec": CODEC, "storage": "storage/_native"}


def version_text() -> str:
    return f"anabranch {anabranch.__version__}\nC code: {native_code()}"


def native_code() -> str:
    if os.environ.get("ANABRANCH_NATIVE") == "off":
        return "not in use (ANABRANCH_NATIVE=off)"
    loaded = [name for name, path in EXTENSIONS.items() if _loads(path)]
    if len(loaded) == len(EXTENSIONS):
        return "in use"
    missing = ", ".join(name for name in EXTENSIONS if name not in loaded)
    return f"not in use for {missing} (Python instead, with the same results)"


def _loads(path: str) -> bool:
    stem = os.path.join(os.path.dirname(anabranch.__file__), *path.split("/"))
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        if os.path.exists(stem + suffix):
            spec = importlib.util.spec_from_file_location("anabranch." + path.replace("/", "."), stem + suffix)
            assert spec is not None, "a file with this suffix is an extension"
            assert spec.loader is not None
            try:
                module = importlib.util.module_from_spec(spec)
                if path != CODEC:
                    spec.loader.exec_module(module)
            except ImportError:  # built for another interpreter, or the processor lacks an instruction
                return False
            return True
    return False
