"""The keys that brokers store and the JSON below them, as patterns: names and numbers of a run become `{…}` and `#`.

The broker runs as a cluster of one, so that the keys of clusters are among them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.compatibility.scenario import NAMESPACE, REMOVED, Scenario, eventually
from tests.support.processes.broker_process import BrokerProcess

REMOVED_KEY = f"/managed/{NAMESPACE}/persistent/{REMOVED.rpartition('/')[2]}"

SOMETIMES = (".load_slots[]", "/segments/#/load", "/{topic}/autoscale")
"""There only when the load was measured, or auto-scaling has decided something. `tests/unit/model/autoscale` pins load
reports (`test_load.py`) and decisions (`test_history.py`)."""

PATTERNS = tuple(
    (re.compile(rf"(?<![^/.]){pattern}(?![^/.])"), replacement)  # only whole parts of a key or of a path in JSON
    for pattern, replacement in (
        (r"(?:persistent|topic|segment)://[^.]+", "{topic}"),
        (
            r"(?<=persistent/)(?:acme|globex|public)/(?:orders|dedup|policies|default)/[\w-]+",
            "{tenant}/{namespace}/{topic}",
        ),
        (r"(?:acme|globex|public)/(?:orders|dedup|policies|default)(?=/)", "{tenant}/{namespace}"),
        (r"(?:acme|globex|public)/(?:orders|dedup|policies|default)", "{tenant}/{namespace}"),
        (r"(?<=^/tenants/)(?:acme|globex|public)", "{tenant}"),
        (r"(?<=\{namespace\}/)(?:scale|scale-removed|schema-json|schema-avro)", "{topic}"),
        (r"(?<=/persistent/)[\w-]+", "{topic}"),
        (r"(?<=/segment/)[\w-]+/[0-9a-f]{4}-[0-9a-f]{4}-\d+", "{topic}/{segment}"),
        (r"anabranch-standalone-[0-9a-f]+-s\d+", "{id}"),
        (r"(?:individual|stream|queue|group|untouched)", "{subscription}"),
        (r"(?:stream|group)-1", "{consumer}"),
        (r"(?:reader|writer|auditor)", "{role}"),
        (r"\d+", "#"),
    )
)


def collect() -> dict[str, str]:
    """Every (key, JSON path) with its type after the scenario, and while its consumers are connected."""
    found: dict[str, set[str]] = {}
    with (
        tempfile.TemporaryDirectory() as temporary,
        BrokerProcess(Path(temporary) / "data", arguments=["--set", "cluster.enabled=true"]) as broker,
    ):
        url = f"sqlite:///{broker.data / 'metadata'}"

        def look_at_everything() -> None:
            eventually(lambda: REMOVED_KEY not in _metadata("export", url), "the removed topic is deleted for good")
            _look_at_exported(url, found)
            _look_at_ephemeral(url, found)

        Scenario(broker, look=look_at_everything).write()
        broker.stop()
        _look_at_exported(url, found)
    return {
        place: " or ".join(sorted(types))
        for place, types in found.items()
        if not any(one in place for one in SOMETIMES)
    }


def _look_at_exported(url: str, found: dict[str, set[str]]) -> None:
    for line in _metadata("export", url).splitlines():
        record = json.loads(line)
        if "key" in record:
            _note(record["key"], record.get("value", ""), "", found)


def _look_at_ephemeral(url: str, found: dict[str, set[str]]) -> None:
    """An export leaves these out."""
    for entry in json.loads(_metadata("ls", url, "-r", "--json")):
        if entry.get("ephemeral"):
            lines = _metadata("get", url, entry["key"], "--raw").splitlines()  # the holder, then what it says of itself
            for number, line in enumerate(lines):
                _note(entry["key"], line, f" (ephemeral, line {number})", found)


def _metadata(verb: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "anabranch", "metadata", verb, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def _note(key: str, value: str, remark: str, found: dict[str, set[str]]) -> None:
    for path, kind in _paths(_decoded(value)):
        found.setdefault(f"{pattern(key)}{remark} {path}".rstrip(), set()).add(kind)


def pattern(text: str) -> str:
    """A key, or a name in JSON, without what differs between topics and runs."""
    for regular_expression, replacement in PATTERNS:
        text = regular_expression.sub(replacement, text)
    return text


def _decoded(value: object) -> object:
    """JSON inside a text, too."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    yield path, _kind_of(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(_decoded(inner), f"{path}.{pattern(key)}")
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(_decoded(inner), f"{path}[]")


def _kind_of(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "flag", int: "number", float: "number"}
    return "null" if value is None else names[type(value)]
