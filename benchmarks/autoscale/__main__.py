"""Automatic split and merge: `make bench-autoscale` or `python -m benchmarks.autoscale [--quick] …`.

| module | what it measures |
|---|---|
| `live` | a broker process under load: growth, reaction to load and consumers, pause of a producer |
| `steady` | metadata writes of segments whose load does not change |
| `idle_topics` | CPU of a broker with idle topics |
| `simulated` | days on a virtual clock |
"""

from __future__ import annotations

from benchmarks.autoscale import idle_topics, live, simulated, steady
from benchmarks.support import report
from benchmarks.support.measure import Run

MEASURES: dict[str, Run] = {
    "grow": live.grow,
    "react": live.react,
    "consumer": live.consumer,
    "pause": live.pause,
    "steady": steady.steady,
    "topics": idle_topics.topics,
    "day": simulated.day,
    "idle": simulated.idle,
}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.autoscale", MEASURES, (), arguments, mark="-autoscale")


if __name__ == "__main__":
    raise SystemExit(main())
