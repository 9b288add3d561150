"""Every benchmark runs once, tiny, so that it cannot rot. What it measures here means nothing; that it measures
does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import MEASURES, MICROS, main
from benchmarks.support.measure import Outcome, Series, at_least, at_most, side_by_side, table


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURES)
def test_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    assert main(["--quick", "--only", name, "--dir", str(tmp_path), "--json", str(target)]) == 0
    record = json.loads(target.read_text())
    assert record["quick"] is True and record["commit"] and record["machine"]
    shown = capsys.readouterr().out
    assert record["measures"]
    for measure in record["measures"]:
        assert measure["ratio"] > 0
        assert measure["title"] in shown
    assert [path for path in tmp_path.iterdir() if path != target] == [], "the benchmark cleans up"


@pytest.mark.slow
@pytest.mark.parametrize("name", MICROS)
def test_micro_runs(name: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    assert main(["--quick", "--only", name, "--json", str(target)]) == 0
    assert json.loads(target.read_text())["micro"][name]


def outcome(measured: tuple[float, ...], floor: tuple[float, ...]) -> Outcome:
    return Outcome("n", "title", Series("a", "x/s", measured), Series("b", "x/s", floor), at_least(0.5))


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    found = outcome((10.0, 50.0, 30.0), (100.0, 100.0, 50.0))
    assert found.ratios == (0.1, 0.5, 0.6)
    assert found.ratio == 0.5
    assert found.verdict == "ok"
    assert outcome((1.0,), (4.0,)).verdict == "MISSED"


def test_goals() -> None:
    assert at_most(3).is_met(3) and not at_most(3).is_met(3.01)
    assert at_least(0.5).is_met(0.5) and not at_least(0.5).is_met(0.49)


def test_sides_take_turns_in_alternating_order() -> None:
    calls: list[str] = []

    def side(name: str, value: float) -> float:
        calls.append(name)
        return value

    assert side_by_side(2, lambda: side("a", 1.0), lambda: side("b", 2.0)) == [(1.0, 1.0), (2.0, 2.0)]
    assert calls == ["a", "b", "b", "a"]


def test_table_marks_missed_goals() -> None:
    lines = list(table([outcome((1.0,), (4.0,))]))
    assert "title" in lines[1] and "0.25" in lines[1] and lines[1].endswith("MISSED")
