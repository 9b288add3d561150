"""docs/reference/conformance.md: which feature was run with which client of Apache Pulsar, by which test.

    python -m scripts.conformance_reference > docs/reference/conformance.md

The rows are the marks of the tests themselves: `@pytest.mark.conformance("seek", client="Go")`, with `brokers=3` for a
test on three brokers. Versions are read from the files that pin the clients.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "tests/services/builds"
FOLDERS = ("tests/e2e", "tests/interop")
CLIENTS = ("Python", "Python asyncio", "Java", "Go", "Rust", "Java V5", "pulsar-admin", "pulsar-perf")
NOT_HAD = (
    (
        "Node (`pulsar-client` 1.18.0)",
        "its native part is not in the registry, and building it needs the C++ client's headers",
    ),
)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    feature: str
    client: str
    brokers: int
    test: str  # file::function


def marks() -> list[Mark]:
    """Of all tests."""
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("test_*.py"))
    return sorted(mark for file in files for mark in marks_in(file.read_text(), str(file.relative_to(ROOT))))


def marks_in(text: str, file: str) -> Iterator[Mark]:
    if "mark.conformance" not in text:
        return
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.mark.conformance":
                    feature = ast.literal_eval(one.args[0])
                    more = {str(word.arg): ast.literal_eval(word.value) for word in one.keywords}
                    yield Mark(feature, more["client"], more.get("brokers", 1), f"{file}::{node.name}")


def _pom_version(build: str, artifact: str) -> str:
    text = (BUILDS / build / "pom.xml").read_text()
    found = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>([^<]+)<", text)
    assert found is not None
    return found[1]


def versions() -> dict[str, str]:
    wheel = re.search(r"^pulsar-client==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    module = re.search(r"pulsar-client-go v(\S+)", (BUILDS / "pulsar_go/go.mod").read_text())
    crate = re.search(
        r'^pulsar = \{ version = "=([^"]+)"', (BUILDS / "pulsar_rust/Cargo.toml").read_text(), re.MULTILINE
    )
    assert wheel is not None
    assert crate is not None
    assert module is not None
    java = _pom_version("pulsar_v5", "pulsar-client-v5")
    return {
        "Python": wheel[1],
        "Python asyncio": wheel[1],
        "Java": java,
        "Java V5": java,
        "Go": module[1],
        "Rust": crate[1],
        "pulsar-admin": _pom_version("pulsar_admin", "pulsar-client-tools"),
        "pulsar-perf": _pom_version("pulsar_perf", "pulsar-testclient"),
    }


def cell(found: list[Mark]) -> str:
    """Names of the tests, those on three brokers with ³."""
    return "<br>".join(f"`{one.test.rpartition('::')[2]}`{'³' if one.brokers > 1 else ''}" for one in found)


def page() -> str:
    known, found = versions(), marks()
    assert {one.client for one in found} == set(known), "a client without tests, or without a version"
    shown = [client for client in CLIENTS if client in known]
    lines = [
        "# Conformance",
        "",
        "Clients of Apache Pulsar that the tests run unchanged on our broker, and what each does there. A name is the",
        "test; ³ is one on three brokers, with a topic of each. `python -m scripts.conformance_reference` writes this",
        "page from the marks of the tests. `make conformance` runs those of Rust, and policies on three brokers.",
        "",
        "| client | version | features | tests |",
        "|---|---|---|---|",
    ]
    for client in shown:
        mine = [one for one in found if one.client == client]
        lines.append(
            f"| {client} | {known[client]} | {len({one.feature for one in mine})} | {len({one.test for one in mine})} |"
        )
    lines += ["", "Not had on the machines that run these tests:", ""]
    lines += [f"* {client}: {why}." for client, why in NOT_HAD]
    groups = (
        ("Clients of regular topics", ("Python", "Python asyncio", "Java", "Go", "Rust")),
        ("Scalable topics and tools", ("Java V5", "pulsar-admin", "pulsar-perf")),
    )
    for title, clients in groups:
        columns = [client for client in clients if client in known]
        lines += ["", f"## {title}", "", "| feature | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
        for feature in sorted({one.feature for one in found if one.client in columns}):
            cells = [cell([one for one in found if (one.feature, one.client) == (feature, who)]) for who in columns]
            lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    files = sorted({one.test.partition("::")[0] for one in found})
    lines += ["", "The tests are in " + ", ".join(f"`{file}`" for file in files) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
