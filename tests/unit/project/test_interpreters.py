"""The package on the other Python versions of its classifiers, where this machine has them.

Dependencies with C code are installed for one version only, so modules that need them are listed, not imported.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib, io, json, logging, pkgutil, sys
sys.path[:0] = sys.argv[1:]
import anabranch

fine, unchecked, bad = [], [], {}
for one in pkgutil.walk_packages(anabranch.__path__, "anabranch."):
    if one.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(one.name)
        fine.append(one.name)
    except ImportError as error:
        if (error.name or "").startswith("anabranch"):
            bad[one.name] = repr(error)
        else:
            unchecked.append(one.name)  # a dependency of another version, or an extra
    except Exception as error:
        bad[one.name] = repr(error)

from anabranch.model.names import TopicName
from anabranch.runtime.logs import get_logger, setup_logs

stream = io.StringIO()
setup_logs("info", "text", stream)
get_logger("anabranch.test").warning("split planned", extra={"topic": str(TopicName.parse("topic://a/b/c"))})
json.dump({"fine": len(fine), "unchecked": unchecked, "bad": bad, "line": stream.getvalue()}, sys.stdout)
"""


def versions() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [one[-4:] for one in project["classifiers"] if re.fullmatch(r".*:: 3\.\d\d", one)]


def interpreter(version: str) -> str | None:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    managed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return str(managed[-1]) if managed else shutil.which(f"python{version}")


def test_classifiers_name_the_supported_versions() -> None:
    assert versions() == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize("version", versions())
def test_modules_are_imported_without_a_warning(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    packages = sysconfig.get_paths()["purelib"]
    strict = ["-W", "error::SyntaxWarning"]
    done = subprocess.run(
        [python, "-B", *strict, "-c", PROGRAM, str(ROOT / "src"), packages], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bad"] == {}
    assert found["line"].endswith("split planned topic=topic://a/b/c\n"), "no field of another version is shown"
    assert found["fine"] > len(found["unchecked"])
    if version == "3.11":
        assert [one for one in found["unchecked"] if ".metadata." not in one] == []


@pytest.mark.parametrize("version", versions())
def test_sources_compile_without_a_warning(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    program = (
        "import pathlib, sys\n"
        "for path in pathlib.Path(sys.argv[1]).rglob('*.py'):\n"
        "    compile(path.read_text(encoding='utf-8'), str(path), 'exec')\n"
    )
    done = subprocess.run(
        [python, "-B", "-W", "error", "-c", program, str(ROOT / "src")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
