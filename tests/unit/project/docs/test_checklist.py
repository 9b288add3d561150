"""The checklists in docs/internals (split-and-merge, consumer-groups): every row names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGES = tuple(ROOT / "docs" / "internals" / name for name in ("split-and-merge.md", "consumer-groups.md"))

LINES = (
    "leader killed at the intent, child 1, child 2, seal 1, seal 2, commit, tell",
    "leader pauses past its session, then goes on",
    "a follower is promoted",
    "two splits at once",
    "split and merge at once",
    "split and collection at once",
    "split and a new subscription at once",
    "split and seek at once",
    "split and deletion at once",
    "compare-and-set applied, its answer lost",
    "deleted and created again at once",
    "`persistent://` and `topic://` of one topic",
    "names with `/ % #` and unicode",
    "topic with queues only",
    "deletion fails three times, then works",
    "pruned while a subscription is being created",
    "layouts pushed out of order",
    "created or deleted during a watcher's first read",
    "subscription without a consumer, across split and collection",
    "subscription at the latest message during a split",
    "fast splits with a backlog, per-key order",
    "merge with one slow parent",
    "drained sealed segments do not skew the balance",
    "join and leave move at most ceil(segments / consumers)",
    "old connection closes after the new one registered",
    "registration completes after its connection closed",
    "two consumers of one name",
    "one consumer of a shared connection closes",
    "failover keeps children assigned",
    "seek back into sealed ancestors",
    "checkpoint restored after its segment was sealed and drained",
)
"""Known failures of controllers of scalable topics. No line is ever removed."""

NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def rows() -> dict[str, str]:
    """Case -> tests, of the first table below the heading of each page."""
    found: dict[str, str] = {}
    for page in PAGES:
        section = page.read_text().split("## Checklist")[1].split("More cases")[0]
        cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
        found.update({case.strip(): tests for case, tests in cells[1:]})
    return found


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in found)


def test_every_line_has_a_row() -> None:
    assert tuple(rows()) == LINES


@pytest.mark.parametrize("line", LINES)
def test_every_row_names_tests_that_exist(line: str) -> None:
    named = NAMED.findall(rows()[line])
    assert named, "nothing proves it"
    for file, function in named:
        assert function.startswith("test_") or not function
        assert not function or function in functions(file), f"{file}::{function}"
        assert any(one.startswith("test_") for one in functions(file)), file


def test_no_test_stands_for_two_lines() -> None:
    """The first test that a row names belongs to that row alone."""
    first = [next(iter(NAMED.findall(tests))) for tests in rows().values()]
    assert len(set(first)) == len(first)
