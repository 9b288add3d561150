"""Prometheus text format: families, labels, numbers. Pure.

All samples of a family stand together under its HELP and TYPE, so a page is written family by family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str  # counter, gauge or summary
    help: str

    def __post_init__(self) -> None:
        assert (self.kind == "counter") == self.name.endswith("_total"), f"{self.name} is no {self.kind}"

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"


def counter(name: str, help: str) -> Family:
    return Family(name, "counter", help)


def gauge(name: str, help: str) -> Family:
    return Family(name, "gauge", help)


def escaped(text: str) -> str:
    """Escape a label value."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels(**values: str) -> str:
    return ",".join(f'{name}="{escaped(text)}"' for name, text in values.items())


Row = tuple[str, Sequence[float]]
"""Formatted labels, and a value for each family of the group."""


def samples(name: str, rows: Iterable[Row], column: int) -> str:
    """The lines of one family for some rows."""
    # repr writes whole floats as 3.0 and large ones as 1e+16; the format allows both.
    return "".join([f"{name}{{{where}}} {values[column]!r}\n" for where, values in rows])


def single(family: Family, value: float, where: str = "") -> str:
    return f"{family.head}{family.name}{{{where}}} {value!r}\n" if where else f"{family.head}{family.name} {value!r}\n"


_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def by_labels(page: str) -> list[dict[str, Any]]:
    """The samples of a page as Pulsar's JSON: one object of `metrics` for each set of labels (`dimensions`)."""
    found: dict[str, dict[str, Any]] = {}
    for line in page.splitlines():
        sample = None if line.startswith("#") else _SAMPLE.match(line)
        if sample is None:
            continue
        name, where, value = sample[1], sample[2] or "", float(sample[3])
        if where not in found:
            dimensions = {label: re.sub(r"\\.", _unescaped, text) for label, text in _LABEL.findall(where)}
            found[where] = {"metrics": {}, "dimensions": dimensions}
        found[where]["metrics"][name] = value
    return list(found.values())


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], found[0])
