"""Drawings: segments over the hash ring, traffic over time, and the effect of a policy. Needs no Spark."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.model.errors import Error

if TYPE_CHECKING:
    from anabranch.spark.jobs.simulate import Simulation
    from anabranch.spark.jobs.stats import SegmentStats, TopicStats

RING = 65_536
ENDINGS = (".png", ".svg")
BLUE, GRAY, RED = "#2b6cb0", "#718096", "#c53030"


class NoPicture(Error):
    """It cannot be drawn: matplotlib is missing, or the file cannot be one."""

    code = "no-picture"


def check_picture(path: Path) -> None:
    """Before the work whose result is drawn: could it be, there?"""
    if path.suffix.lower() not in ENDINGS:
        raise NoPicture(f"{path}: a picture is a {' or '.join(ENDINGS)} file")
    if not path.parent.is_dir():
        raise NoPicture(f"{path}: there is no folder {path.parent}")
    _pyplot()


def draw(figures: TopicStats, path: Path) -> None:
    """PNG or SVG, by the name's ending."""
    pyplot = _pyplot()
    rows = generations(figures.segments)
    height = 3.4 + 0.3 * min(max(rows.values(), default=0), 12)
    page, (left, right) = pyplot.subplots(1, 2, figsize=(12, height), width_ratios=(3, 2), layout="constrained")
    page.suptitle(
        f"{figures.topic}: {figures.messages:,} messages, {figures.bytes:,} bytes, {figures.keys:,} keys, "
        f"skew {figures.skew:.2f}",
        fontsize=11,
    )
    most = max((one.bytes for one in figures.segments), default=0)
    for one in figures.segments:
        width, row = one.hash_end - one.hash_start + 1, rows[one.segment]
        shade = 0.15 + 0.75 * one.bytes / most if most else 0.15
        left.barh(
            row, width, left=one.hash_start, height=0.86, color=BLUE if one.is_active else GRAY, alpha=shade,
            edgecolor="black", linewidth=0.6,
        )  # fmt: skip
        text = f"{one.segment}: {one.messages:,}" if width > RING // 8 else str(one.segment)
        color = "white" if shade > 0.6 else "black"
        left.text(one.hash_start + width / 2, row, text, ha="center", va="center", fontsize=8, color=color)
        if one.split_at is not None:
            left.plot([one.split_at] * 2, [row - 0.43, row + 0.43], linestyle=":", linewidth=1.6, color=RED)
    left.set_xlim(0, RING)
    left.set_xticks([0, RING // 4, RING // 2, 3 * RING // 4, RING - 1], ["0000", "4000", "8000", "c000", "ffff"])
    left.set_yticks([])
    left.invert_yaxis()
    left.set_xlabel("ring position; blue: active, gray: sealed, the darker the more bytes; dotted: suggested split")
    left.set_title("segments, parents above children: messages", fontsize=10)
    seconds = figures.step_seconds
    rates = [count / seconds for _, count, _ in figures.over_time]
    _over_time(right, [at for at, _, _ in figures.over_time], rates, BLUE)
    right.set_title("messages per second, by publish time", fontsize=10)
    _save(pyplot, page, path)


def draw_simulation(found: Simulation, path: Path) -> None:
    """Traffic and the busiest segment above, the number of segments below."""
    draw_simulations({"policy": found}, path)


def draw_simulations(found: Mapping[str, Simulation], path: Path) -> None:
    """As `draw_simulation`; several policies on the same traffic have a line each."""
    pyplot = _pyplot()
    page, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(10, 5.4), height_ratios=(3, 2), sharex=True, layout="constrained"
    )
    first = next(iter(found.values()))
    changes = f"{first.splits} splits, {first.merges} merges, {first.seconds_above:,.0f} s above a threshold"
    page.suptitle(f"{first.topic}: {changes if len(found) == 1 else f'{len(found)} policies'}", fontsize=11)
    at = [one.at for one in first.ticks]
    upper.step(at, [one.total.messages for one in first.ticks], where="pre", color=GRAY, label="all segments")
    for (title, one), color in zip(found.items(), _colors(len(found)), strict=True):
        name = "busiest segment" if len(found) == 1 else f"busiest segment, {title}"
        upper.step(at, [tick.hottest.messages for tick in one.ticks], where="pre", color=color, label=name)
        lower.step(at, [tick.segments for tick in one.ticks], where="pre", color=color, label=title)
    limit = first.policy.split_msg_rate_in_threshold
    if max((one.total.messages for one in first.ticks), default=0) > limit / 4:
        upper.axhline(limit, linestyle="--", linewidth=1, color=RED, label="split threshold")
    upper.set_ylim(bottom=0)
    upper.set_ylabel("messages/s")
    upper.legend(loc="upper right", fontsize=8)
    lower.set_ylim(0, max(one.segments_most for one in found.values()) + 1)
    lower.yaxis.get_major_locator().set_params(integer=True)
    lower.set_ylabel("segments")
    lower.set_xlabel("seconds from the first message")
    if len(found) > 1:
        lower.legend(loc="upper right", fontsize=8)
    else:
        for step in first.steps:
            lower.axvline(step.at, linewidth=0.6, color=RED if step.kind == "split" else GRAY, alpha=0.6)
    for face in (upper, lower):
        face.grid(alpha=0.3)
    _save(pyplot, page, path)


def _colors(count: int) -> list[str]:
    """The first is blue; the others are matplotlib's, in order."""
    return [BLUE, *(f"C{i}" for i in range(1, count))]


def generations(segments: Sequence[SegmentStats]) -> dict[int, int]:
    """Per segment how many come before it, at most: 0 for those without a parent."""
    known = {one.segment: one for one in segments}
    rows: dict[int, int] = {}
    for one in sorted(known):  # children have higher numbers than their parents
        rows[one] = max((rows[parent] + 1 for parent in known[one].parents if parent in rows), default=0)
    return rows


def _over_time(face: Any, times: Sequence[Any], values: Sequence[float], color: str) -> None:
    dates: Any = importlib.import_module("matplotlib.dates")
    face.fill_between(times, values, step="post", alpha=0.3, color=color)
    face.step(times, values, where="post", color=color)
    face.set_ylim(bottom=0)
    face.grid(alpha=0.3)
    locator = dates.AutoDateLocator()
    face.xaxis.set_major_locator(locator)
    face.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as cause:
        raise NoPicture("pictures need matplotlib: pip install 'anabranch[plot]'") from cause
    return pyplot


def _save(pyplot: Any, page: Any, path: Path) -> None:
    page.savefig(path)
    pyplot.close(page)
