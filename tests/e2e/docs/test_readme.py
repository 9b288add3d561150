"""Every block of the README and the other pages runs, or is checked against what it names; an unknown kind fails.

Python blocks run in order in one process, as a reader would type them, then the `curl` lines in order on the same
broker. `make` targets and a server's flags must exist: CI runs the targets, the fixture runs the server.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PYTHON_IS_RUN = ("README.md", "sdk.md", "testing.md")  # by test_sdk.py, by test_testing_fixture.py
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path, kind: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(page.read_text()) if found == kind]


def shell_lines(program: str) -> list[str]:
    """Lines of all pages, in reading order, whose first word is this program."""
    found: list[str] = []
    for page in PAGES:
        for line in "\n".join(blocks(page, "sh")).splitlines():
            command = re.split(r"\s#\s", line)[0].strip()
            if command and not command.startswith("#") and Path(shlex.split(command)[0]).name == program:
                found.append(command)
    return found


def test_a_reader_can_follow_the_page(private_broker: BrokerProcess) -> None:
    program = "\n".join(blocks(README, "python"))
    assert program.count("assert ") >= 3
    program = program.replace("pulsar://localhost:6650", private_broker.service_url)
    program = program.replace("http://localhost:8080", private_broker.http_url)
    for _ in range(2):  # a reader tries a page more than once
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    for line in shell_lines("curl"):
        words = [word.replace("http://localhost:8080", private_broker.http_url) for word in shlex.split(line)]
        called = subprocess.run([*words, "--fail-with-body"], capture_output=True, text=True, timeout=30)
        assert called.returncode == 0, f"{line}\n{called.stdout}\n{called.stderr}"


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {word for line in shell_lines("make") for word in shlex.split(line)[1:] if "=" not in word}
    assert named >= {"setup", "demo", "test"}
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("line", sorted(set(shell_lines("anabranch"))))
def test_the_command_line_is_as_written(line: str) -> None:
    """A command that ends by itself is run; of a server, the flags must exist."""
    arguments = shlex.split(line)[1:]
    flags: list[str] = []
    if arguments[0] in ("standalone", "broker"):
        flags = [word for word in arguments if word.startswith("--")]
        arguments = [arguments[0], "--help"]
    done = subprocess.run([sys.executable, "-m", "anabranch", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert [flag for flag in flags if flag not in done.stdout] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_holds_only_what_is_checked(page: Path) -> None:
    text = page.read_text()
    kinds = {kind for kind, _ in _BLOCK.findall(text)}
    assert kinds <= {"python", "sh", "text", "toml"}
    assert page.name in PYTHON_IS_RUN or "python" not in kinds, "python belongs where it is run: README or examples/"
    for line in "\n".join(blocks(page, "sh")).splitlines():
        command = re.split(r"\s#\s", line)[0].strip()
        if command and not command.startswith("#"):
            assert Path(shlex.split(command)[0]).name in ("make", "anabranch", "curl"), f"nobody checks: {command}"
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for file, function in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / file).is_file(), file
        assert not function or re.search(rf"(def|class) {function}\b", (ROOT / file).read_text()), f"{file}::{function}"


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "reference" / "guarantees.md").read_text()
    assert len(re.findall(r"`tests/[\w/]+\.py", text)) >= 10
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert [row for row in rows if "`tests/" not in row] == [], "a promise without a test"
