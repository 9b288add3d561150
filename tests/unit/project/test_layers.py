"""The shape of the source tree: layers, sibling packages, folder sizes, package tables, clocks, module sizes.

`docs/architecture.md` explains the rules. Each rule is a function over sources, so that a test can show that it finds
what it looks for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "src" / "anabranch"
FOLDER_ENTRIES_MAX = 20
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

_BASE = frozenset({"model", "protocol", "runtime"})
_STORES = _BASE | {"metadata", "storage"}
_SERVING = _STORES | {"security", "interbroker", "cluster"}
LAYERS: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "protocol": frozenset({"model"}),
    "runtime": frozenset(),
    "zookeeper": frozenset({"model", "runtime"}),
    "metadata": frozenset({"model", "runtime", "zookeeper"}),
    "storage": frozenset({"model", "runtime", "zookeeper"}),
    "security": _BASE,
    "interbroker": _BASE | {"security", "metadata"},  # the shared secret lies in the metadata store
    "cluster": frozenset({"model", "runtime", "metadata"}),
    "controller": _STORES,
    "broker": _STORES | {"security", "interbroker"},
    "client": _BASE,
    "admin": _BASE,
    "rest": _STORES | {"security", "broker"},
    "cli": _BASE | {"client", "admin"},
    "spark": _BASE | {"client", "admin"},
    "node": _SERVING | {"broker", "controller", "client", "admin", "rest", "cli"},
    "testing": _SERVING | {"broker", "controller", "client", "admin", "rest", "cli", "node"},
}
ENTRY_POINTS = frozenset({"__init__", "__main__", "blocking", "schema"})
LAZY = {  # allowed inside a function or for types only, never at import
    ("cli", "node"),  # `anabranch standalone` starts a node
    ("cli", "spark"),  # `anabranch spark` runs the jobs
    ("cli", "metadata"),  # `anabranch metadata` opens a store itself, because it must work when no broker runs
}
PORTS = {  # broker and controller meet only through the ports that the controller declares
    "broker": ("anabranch.controller.segment_host", "anabranch.controller.interface"),
    "rest": ("anabranch.controller.interface",),
}
CLOCK_CALLS = {
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
CLOCK_OWNER = "runtime"


def sources() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))


def packages() -> list[Path]:
    return sorted(path.parent for path in ROOT.rglob("__init__.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, absolute dotted name) of every import, at any depth and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def layer_violations(source: str, layer: str, name: str) -> list[str]:
    """Imports of `source`, a module of `layer`, that its layer may not have."""
    found = []
    for statement, dotted in imported(ast.parse(source)):
        parts = dotted.split(".")
        if parts[0] != "anabranch" or len(parts) < 2:
            continue
        target = parts[1]
        if target == layer or target not in LAYERS or target in LAYERS[layer]:
            continue
        if (layer, target) in LAZY and statement.col_offset > 0:
            continue
        if f"{dotted}.".startswith(tuple(f"{port}." for port in PORTS.get(layer, ()))):
            continue
        found.append(f"{name}:{statement.lineno}: `{layer}` must not import `{target}`")
    return found


def clock_violations(source: str, name: str) -> list[str]:
    """Reads of a clock, sleeps and draws of randomness in `source`."""
    tree = ast.parse(source)
    found = []
    for statement, dotted in imported(tree):
        parts = tuple(dotted.split("."))
        if parts[0] == "random" or parts in CLOCK_CALLS:
            found.append(f"{name}:{statement.lineno}: imports {dotted}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner, node.attr) in CLOCK_CALLS:
                found.append(f"{name}:{node.lineno}: uses {owner}.{node.attr}")
    return found


def sibling_imports(modules: Mapping[str, str], package: str) -> dict[str, set[str]]:
    """Which sub-packages of `package` import which. `modules` maps paths below the root to sources."""
    below = f"{package}/" if package else ""
    siblings = {path.removeprefix(below).split("/")[0] for path in modules if path.startswith(below)}
    siblings = {one for one in siblings if f"{below}{one}/__init__.py" in modules}
    graph: dict[str, set[str]] = {one: set() for one in siblings}
    prefix = f"anabranch.{below.replace('/', '.')}"
    for path, source in modules.items():
        mine = path.removeprefix(below).split("/")[0]
        if not path.startswith(below) or mine not in siblings:
            continue
        for _, dotted in imported(ast.parse(source)):
            target = dotted.removeprefix(prefix).split(".")[0]
            if dotted.startswith(prefix) and target in siblings and target != mine:
                graph[mine].add(target)
    return graph


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One cycle of the graph, its first node again at the end; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph[node]):
            found = visit(target, [*path, node])
            if found:
                return found
        done.add(node)
        return []

    for start in sorted(graph):
        found = visit(start, [])
        if found:
            return found
    return []


def entries(package: Path) -> list[str]:
    """Modules and sub-packages of one folder; `__init__` and `__main__` are the package itself."""
    own = [one.name for one in package.glob("*.py") if not one.name.startswith("__") and not one.stem.endswith("_pb2")]
    return sorted(own + [one.parent.name for one in package.glob("*/__init__.py")])


def missing_rows(package: Path) -> list[str]:
    """Entries that the table in the package's docstring does not name, and rows for what is not there."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name.strip().removesuffix("/") for cell in rows for name in cell.replace("`", " ").split()]
    there = [entry.removesuffix(".py") for entry in entries(package)]
    return [f"no row for {one}" for one in there if one not in named] + [
        f"row for {one}, which is not there" for one in named if one not in there
    ]


def long_parts(source: str, name: str) -> list[str]:
    found = []
    lines = len(source.splitlines())
    if lines > MODULE_LINES_MAX:
        found.append(f"{name}: {lines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(f"{name}: {node.name} has {length} lines")
    return found


@pytest.mark.parametrize("path", sources(), ids=name_of)
class TestModules:
    def test_imports_only_layers_above(self, path: Path) -> None:
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if layer in ENTRY_POINTS:
            return
        assert layer in LAYERS, f"{name_of(path)} belongs to no layer"
        assert layer_violations(path.read_text(), layer, name_of(path)) == []

    def test_leaves_clock_and_randomness_to_runtime(self, path: Path) -> None:
        if path.relative_to(ROOT).parts[0] != CLOCK_OWNER:
            assert clock_violations(path.read_text(), name_of(path)) == []

    def test_has_a_docstring(self, path: Path) -> None:
        assert ast.get_docstring(ast.parse(path.read_text())), "module docstring is missing"

    def test_logs_with_get_logger_so_that_messages_have_their_fields(self, path: Path) -> None:
        assert "logging.getLogger(__name__)" not in path.read_text(), "use anabranch.runtime.logs.get_logger"

    def test_is_not_too_long(self, path: Path) -> None:
        assert long_parts(path.read_text(), name_of(path)) == []


@pytest.mark.parametrize("package", packages(), ids=name_of)
class TestPackages:
    def test_has_few_entries(self, package: Path) -> None:
        assert len(entries(package)) <= FOLDER_ENTRIES_MAX

    def test_docstring_has_a_row_for_every_entry(self, package: Path) -> None:
        if package != ROOT:
            assert missing_rows(package) == []

    def test_siblings_import_in_one_direction(self, package: Path) -> None:
        if package == ROOT:
            return  # the layers say more
        modules = {name_of(path): path.read_text() for path in sources()}
        assert cycle(sibling_imports(modules, name_of(package))) == []


def test_layer_rule_finds_a_wrong_import() -> None:
    source = "def f():\n    from anabranch.broker import topic\n"
    assert layer_violations(source, "storage", "x.py") == ["x.py:2: `storage` must not import `broker`"]
    assert layer_violations("import anabranch.model.errors", "storage", "x.py") == []
    assert layer_violations("import anabranch.node.standalone", "cli", "x.py") != []
    assert layer_violations("def f():\n    import anabranch.node.standalone", "cli", "x.py") == []
    assert layer_violations("from anabranch.controller.segment_host import Seal", "broker", "x.py") == []
    assert layer_violations("from anabranch.controller.service import X", "broker", "x.py") != []


def test_sibling_rule_finds_a_cycle() -> None:
    modules = {
        "p/__init__.py": "",
        "p/a/__init__.py": "",
        "p/a/x.py": "from anabranch.p.b.y import Y",
        "p/b/__init__.py": "",
        "p/b/y.py": "def f():\n    from anabranch.p.a import x",
        "p/c/__init__.py": "from anabranch.p.a.x import X",
    }
    assert sibling_imports(modules, "p") == {"a": {"b"}, "b": {"a"}, "c": {"a"}}
    assert cycle(sibling_imports(modules, "p")) == ["a", "b", "a"]
    assert cycle({"a": {"b"}, "b": set(), "c": {"a", "b"}}) == []


def test_table_rule_finds_missing_and_stale_rows(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""A package.\n\n| module | what |\n|---|---|\n| `a` `c` | x |\n"""\n')
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "__init__.py").write_text("")
    assert missing_rows(tmp_path) == ["no row for b", "row for c, which is not there"]
    assert entries(tmp_path) == ["a.py", "b"]


def test_clock_rule_finds_clocks_and_randomness() -> None:
    assert clock_violations("import time\nnow = time.time()", "x.py") == ["x.py:2: uses time.time"]
    assert clock_violations("from asyncio import sleep", "x.py") == ["x.py:1: imports asyncio.sleep"]
    assert clock_violations("import random", "x.py") == ["x.py:1: imports random"]
    assert clock_violations("self.clock.sleep(1)", "x.py") == []


def test_length_rule_finds_long_modules_and_functions() -> None:
    assert long_parts("x = 1\n" * 501, "x.py") == ["x.py: 501 lines"]
    body = "    x = 1\n" * 70
    assert long_parts(f"def f():\n{body}", "x.py") == ["x.py: f has 71 lines"]
