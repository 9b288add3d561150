"""The floors of the house: who may import whom, who may read a clock, and that every module says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "src" / "anabranch"
STDLIB_ONLY: frozenset[str] = frozenset()

_GROUND = {"model", "protocol", "runtime"}
_STORES = _GROUND | {"metadata", "storage"}
FLOORS: dict[str, frozenset[str]] = {
    "model": STDLIB_ONLY,
    "protocol": frozenset({"model"}),
    "runtime": STDLIB_ONLY,
    "metadata": frozenset({"model", "runtime"}),
    "storage": frozenset({"model", "runtime"}),
    "cluster": frozenset({"model", "runtime", "metadata"}),
    "broker": frozenset(_STORES),
    "controller": frozenset(_STORES),
    "client": frozenset(_GROUND),
    "admin": frozenset(_GROUND),
    "rest": frozenset(_STORES | {"cluster", "broker", "controller"}),
    "cli": frozenset(_GROUND | {"client", "admin"}),
    "spark": frozenset(_GROUND | {"client", "admin"}),
    "testing": frozenset(_STORES | {"cluster", "broker", "controller", "client", "admin", "rest", "cli", "node"}),
    "node": frozenset(_STORES | {"cluster", "broker", "controller", "client", "admin", "rest", "cli"}),
}
TOP = frozenset({"__init__", "__main__", "blocking", "schema", "version"})  # the package's own front door
FORBIDDEN_CALLS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "sleep"),
    ("time", "monotonic"),
    ("time", "monotonic_ns"),
    ("time", "perf_counter"),
    ("asyncio", "sleep"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
}
CLOCK_OWNERS = {"runtime"}
HAND_OVER = {  # inside a function (or for types only), never at import
    ("cli", "node"),  # the command `standalone` hands over to the wiring
    ("cli", "spark"),  # `anabranch spark` hands over to the jobs
    ("cli", "metadata"),  # `anabranch metadata` looks into a store itself: it must work when no broker does
}
PORTS = {  # siblings meet through what one of them declares: values and protocols, no behaviour
    "broker": (
        "anabranch.controller.segment_host",  # what a controller asks of the owners of its segments
        "anabranch.broker.segment.reader_fence",  # whom owners let in: one rule for every host
        "anabranch.controller.interface",  # what brokers ask of the controllers
    ),
}


def sources() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))


def floor_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, absolute dotted name) of every import, at any depth and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def floor_violations(source: str, floor: str, name: str) -> list[str]:
    """Imports of `source`, a module of `floor`, that its floor may not have."""
    found = []
    for statement, dotted in imported(ast.parse(source)):
        parts = dotted.split(".")
        if parts[0] != "anabranch" or len(parts) < 2:
            continue
        target = parts[1]
        if target == floor or target not in FLOORS or target in FLOORS[floor]:
            continue
        if (floor, target) in HAND_OVER and statement.col_offset > 0:
            continue
        if f"{dotted}.".startswith(tuple(f"{port}." for port in PORTS.get(floor, ()))):
            continue
        found.append(f"{name}:{statement.lineno}: `{floor}` must not import `{target}`")
    return found


def clock_violations(source: str, name: str) -> list[str]:
    """Reads of a clock, sleeps and draws of randomness in `source`."""
    tree = ast.parse(source)
    found = []
    for statement, dotted in imported(tree):
        parts = tuple(dotted.split("."))
        if parts[0] == "random" or parts in FORBIDDEN_CALLS:
            found.append(f"{name}:{statement.lineno}: imports {dotted}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner, node.attr) in FORBIDDEN_CALLS:
                found.append(f"{name}:{node.lineno}: uses {owner}.{node.attr}")
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
class TestEverySource:
    def test_imports_only_floors_above(self, path: Path) -> None:
        floor = floor_of(path)
        if floor in TOP:
            return
        assert floor in FLOORS, f"{path.relative_to(ROOT)} is on no floor of the house"
        assert floor_violations(path.read_text(), floor, str(path.relative_to(ROOT))) == []

    def test_leaves_clock_and_chance_to_runtime(self, path: Path) -> None:
        if floor_of(path) in CLOCK_OWNERS:
            return
        assert clock_violations(path.read_text(), str(path.relative_to(ROOT))) == []

    def test_says_what_it_is(self, path: Path) -> None:
        source = path.read_text()
        assert not source.strip() or ast.get_docstring(ast.parse(source)), "module docstring is missing"


def test_the_rule_notices_a_wrong_import() -> None:
    source = "def f():\n    from anabranch.broker import topic\n"
    assert floor_violations(source, "storage", "x.py") == ["x.py:2: `storage` must not import `broker`"]
    assert floor_violations("import anabranch.model.errors", "storage", "x.py") == []
    assert floor_violations("import anabranch.node.standalone", "cli", "x.py") != []
    assert floor_violations("def f():\n    import anabranch.node.standalone", "cli", "x.py") == []
    assert floor_violations("from anabranch.controller.segment_host import Seal", "broker", "x.py") == []
    assert floor_violations("from anabranch.controller.host_memory import Shelf", "broker", "x.py") != []


def test_the_rule_notices_clocks_and_chance() -> None:
    assert clock_violations("import time\nnow = time.time()", "x.py") == ["x.py:2: uses time.time"]
    assert clock_violations("from asyncio import sleep", "x.py") == ["x.py:1: imports asyncio.sleep"]
    assert clock_violations("import random", "x.py") == ["x.py:1: imports random"]
    assert clock_violations("self.clock.sleep(1)", "x.py") == []
