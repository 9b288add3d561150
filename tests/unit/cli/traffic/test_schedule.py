"""Timetables, percentiles, tables and amounts of the command line: pure parts."""

from __future__ import annotations

import importlib
import re
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.admin.commands import NOUNS
from anabranch.cli.main import main
from anabranch.cli.output.tables import shown, table, topic_stats
from anabranch.cli.param_types import bytes_of, message_id_of, properties_of, words_of
from anabranch.cli.traffic.histogram import Histogram
from anabranch.cli.traffic.schedule import Schedule, stamp_of, stamped

OTHER_READS = {
    "brokers details",
    "brokers healthcheck",
    "brokers leader",
    "brokers leader-broker",
    "brokers namespaces",
    "brokers operations",
    "brokers version",
    "ledgers check",
    "namespaces bundles",
    "namespaces policies",
    "namespaces subscription-permission",
    "ns-isolation-policy broker",
    "ns-isolation-policy brokers",
    "scalable-topics explain",
    "topics bundle-range",
    "topics last-message-id",
    "topics lookup",
    "topics subscriptions",
}


def test_messages_are_due_by_the_clock_and_not_by_answers() -> None:
    schedule = Schedule(rate=64, count=50, began=8.0)
    assert schedule.take_due(8.0, 1000) == range(1)
    assert schedule.take_due(8.125, 1000) == range(1, 9)
    assert schedule.take_due(8.125, 1000) == range(9, 9)
    assert schedule.wait_seconds(8.125) == pytest.approx(1 / 64)
    assert schedule.take_due(99.0, 20) == range(9, 29), "a backlog is worked off in bounded steps"
    assert schedule.take_due(99.0, 1000) == range(29, 50)
    assert schedule.is_over
    assert schedule.due_at(32) == 8.5


def test_stamps() -> None:
    assert stamp_of(stamped(12.5, 100)) == 12.5
    assert len(stamped(12.5, 100)) == 100
    assert stamp_of(stamped(12.5, 3)) is None


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=200))
def test_percentiles_are_at_most_two_per_cent_off(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    ranked = sorted(values)
    for percent in (50, 99, 99.9):
        index = max(0, -(-len(ranked) * percent // 100) - 1)
        exact = ranked[int(index)]
        assert exact * 0.999 <= histogram.percentile(percent) <= exact * 1.0201
    assert histogram.summary_ms()["max"] == pytest.approx(ranked[-1] * 1000, abs=0.001)


def test_an_empty_histogram_says_zero() -> None:
    assert set(Histogram().summary_ms().values()) == {0.0}


def test_amounts() -> None:
    assert [bytes_of(text) for text in ("7", "10k", "3M", "2GiB", "1T")] == [7, 10240, 3 << 20, 2 << 30, 1 << 40]
    for wrong in ("", "k", "-1", "1.5M", "3 apples"):
        with pytest.raises(click.BadParameter):
            bytes_of(wrong)
    assert words_of(("a, b", "c")) == ["a", "b", "c"]
    assert properties_of(["a=1,b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(click.BadParameter):
        properties_of(["a"])
    assert message_id_of("12:-1")["entryId"] == -1
    with pytest.raises(click.BadParameter):
        message_id_of("12")


def test_tables() -> None:
    assert table(("name", "n"), [("a", 5), ("long", 10)]) == "NAME   N\na      5\nlong  10"
    assert shown([{"a": 1}, {"b": True}]) == "A  B\n1  -\n-  yes"
    assert shown({"k": {"x": 1}, "long": None}) == 'k     {"x": 1}\nlong  -'
    answers: list[Any] = [None, [], {}, True, 3, "text"]
    assert [shown(one) for one in answers] == ["not set", "(none)", "(empty)", "true", "3", "text"]
    assert "no subscriptions" in topic_stats({})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_ANABRANCH_COMPLETE" in capsys.readouterr().out


def test_completion_finds_nouns_and_verbs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ANABRANCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "anabranch admin topics create-")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit):
        main([])
    assert "plain,create-partitioned-topic" in capsys.readouterr().out.splitlines()


def test_completion_without_a_broker_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("_ANABRANCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "anabranch admin topics stats or")
    monkeypatch.setenv("COMP_CWORD", "4")
    with pytest.raises(SystemExit):
        main([])
    assert tuple(text.strip() for text in capsys.readouterr()) == ("", "")


def test_only_verbs_that_read_are_watched() -> None:
    nouns = [getattr(importlib.import_module(module), name) for module, name, _ in NOUNS.values()]
    watched = {
        f"{noun.name} {verb.name}"
        for noun in nouns
        for verb in noun.commands.values()
        if any(one.name == "watch" for one in verb.params)
    }
    assert {"tenants list", "topics stats", "scalable-topics list", "brokers details", "schemas list"} <= watched
    reads = re.compile(r"(get|list|show|stats|peek|examine)|.*(list|topics|stats|info|status|permissions|metadata)\b")
    others = {one for one in watched if not reads.match(one.partition(" ")[2])}
    assert others <= OTHER_READS, "a verb that changes something is repeated by --watch"
