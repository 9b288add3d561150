"""Results of a benchmark: figures of several rounds, measured side by side, and their ratio.

Absolute numbers of a shared machine mean little. Each measure therefore has a floor or a peer, measured in the same
rounds. The ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """The bound a figure has to keep. `shown` is the issue's own wording."""

    bound: float
    is_floor: bool
    shown: str

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_floor else value <= self.bound


def at_least(bound: float) -> Goal:
    return Goal(bound, True, f"≥ {bound:g}")


def at_most(bound: float) -> Goal:
    return Goal(bound, False, f"≤ {bound:g}")


@dataclass(frozen=True, slots=True)
class Series:
    """One figure per round."""

    label: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        return f"{short(self.median)} {self.unit}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table. Without a floor the figure itself is compared with the goal."""

    name: str
    title: str
    measured: Series
    floor: Series | None
    goal: Goal | None  # None: for information
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        if self.floor is None:
            return self.measured.values
        return tuple(one / other for one, other in zip(self.measured.values, self.floor.values, strict=True))

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "ok" if self.goal.is_met(self.ratio) else "MISSED"

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "ratio": self.ratio,
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
            "goal": self.goal.shown if self.goal else None,
            "verdict": self.verdict,
            "measured": _series(self.measured),
            "floor": _series(self.floor) if self.floor is not None else None,
            "notes": dict(self.notes),
        }


def _series(series: Series) -> dict[str, Any]:
    return {"label": series.label, "unit": series.unit, "median": series.median, "rounds": list(series.values)}


@dataclass(frozen=True, slots=True)
class Scene:
    """Where and how big: a directory on the disk to be measured, and `quick` for a run that only shows that it runs."""

    directory: Path
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def place(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path


Run = Callable[[Scene], list[Outcome]]


class Failed(RuntimeError):
    """A measure failed. The text is shown, and the logs are kept."""

    def __init__(self, text: str, logs: Sequence[Path] = ()) -> None:
        super().__init__(text)
        self.logs = tuple(logs)


def side_by_side(rounds: int, *sides: Callable[[], float]) -> list[tuple[float, ...]]:
    """Every side once per round, turning the order from round to round, so that drift of the machine hits all alike."""
    values: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        order = list(enumerate(sides))
        for index, side in order if number % 2 == 0 else reversed(order):
            values[index].append(side())
    return [tuple(column) for column in values]


def process_cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_cpu_seconds(pid: int) -> float:
    """The same for a process and its live descendants."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        one = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(one)
        used[one] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, ahead = 0.0, [pid]
    while ahead:
        one = ahead.pop()
        total += used.get(one, 0.0)
        ahead += children.get(one, ())
    return total


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def short(value: float) -> str:
    """The value with three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """The lines of the table for people."""
    rows = [("measure", "measured", "against", "ratio", "(min … max)", "goal", "")]
    for one in outcomes:
        floor = f"{one.floor} {one.floor.label}" if one.floor is not None else "–"
        spread = f"({short(min(one.ratios))} … {short(max(one.ratios))})"
        goal = one.goal.shown if one.goal else "–"
        rows.append((one.title, str(one.measured), floor, short(one.ratio), spread, goal, one.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
