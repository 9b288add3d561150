"""Figures of a topic as a picture: its segments over the ring, and its traffic over time. Draws; knows no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.model.errors import Error

if TYPE_CHECKING:
    from anabranch.spark.figures import TopicStats

RING = 65_536


class NoPicture(Error):
    """matplotlib is missing."""

    code = "no-picture"


def draw(figures: TopicStats, path: Path) -> None:
    """PNG or SVG, by the name's ending."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as cause:
        raise NoPicture("pictures need matplotlib: pip install 'anabranch[plot]'") from cause
    page, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), width_ratios=(3, 2), constrained_layout=True)
    for one in figures.segments:
        width = max(one.high - one.low + 1, RING // 256)
        left.bar(one.low, one.messages, width=width, align="edge", alpha=0.7, edgecolor="black", linewidth=0.5)
        left.annotate(str(one.segment), (one.low + width / 2, one.messages), ha="center", va="bottom", fontsize=8)
        if one.split_at is not None:
            left.axvline(one.split_at, linestyle=":", linewidth=1, color="gray")
    left.set_xlim(0, RING)
    left.set_xlabel("ring position (dotted: suggested split)")
    left.set_ylabel("messages")
    left.set_title(f"{figures.topic}: {figures.messages:,} messages, {figures.keys:,} keys, skew {figures.skew:.2f}")
    right.plot(
        [at for at, _, _ in figures.over_time], [count for _, count, _ in figures.over_time], drawstyle="steps-post"
    )
    right.set_title("messages over time")
    right.tick_params(axis="x", rotation=30, labelsize=7)
    page.savefig(path)
    pyplot.close(page)
