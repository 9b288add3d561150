"""What needs attention: facts in, lines out."""

from __future__ import annotations

from dataclasses import replace

from anabranch.cli.diagnose.attention import (
    OPERATION_MS_MAX,
    ClusterFacts,
    Severity,
    TopicFacts,
    findings,
    migration_step,
    severity_of,
)

NOW = 1_000_000
LEADER = {"id": "b1", "leader": True, "draining": False, "version": "1"}
GOOD = ClusterFacts(now_ms=NOW, brokers=[LEADER], topics=[TopicFacts("t", backlogs={"s": 5}, consumers={"s": 1})])
SPLIT = {"kind": "SPLIT", "phase": "SEAL", "startedAtMs": NOW - OPERATION_MS_MAX - 1_000}


def words(facts: ClusterFacts) -> list[tuple[Severity, str]]:
    return [(one.severity, one.what) for one in findings(facts)]


def test_healthy_cluster_has_no_findings() -> None:
    assert findings(GOOD) == [] and severity_of([]) == Severity.GOOD
    assert findings(replace(GOOD, brokers=None)) == []  # not allowed to see them
    for phase in ("NOT_STARTED", "COMPLETED", "ABORTED"):
        assert findings(replace(GOOD, migration_phase=phase)) == []


def test_broker_that_does_not_serve_is_critical() -> None:
    assert words(replace(GOOD, health="disk full")) == [(Severity.CRITICAL, "the broker does not serve: disk full")]


def test_brokers() -> None:
    follower = {**LEADER, "id": "b2", "leader": False}
    assert words(replace(GOOD, brokers=[])) == [(Severity.CRITICAL, "no broker is registered")]
    assert words(replace(GOOD, brokers=[follower])) == [(Severity.CRITICAL, "no broker leads")]
    draining = {**follower, "draining": True, "version": "2"}
    assert words(replace(GOOD, brokers=[LEADER, draining])) == [
        (Severity.WARNING, "broker b2 is draining: it gets no topics"),
        (Severity.WARNING, "brokers run different versions: 1, 2"),
    ]


MACHINE = {
    "broker": "b1:8080",
    "disk": {"free": 50 << 30, "total": 100 << 30},
    "files": {"open": 100, "limit": 1000},
    "clockSkewMs": 3,
    "metadataMs": 1.5,
    "sync": "group",
}


def test_machines() -> None:
    assert words(replace(GOOD, machines=[MACHINE, {**MACHINE, "disk": None}])) == []
    ill = {
        **MACHINE,
        "disk": {"free": 9 << 30, "total": 100 << 30},
        "files": {"open": 801, "limit": 1000},
        "clockSkewMs": 1_500,
        "metadataMs": 2_000.0,
        "sync": "none",
    }
    found = words(replace(GOOD, machines=[ill]))
    assert {severity for severity, _ in found} == {Severity.WARNING}
    assert [text.split("b1:8080")[0].strip() for _, text in found] == [
        "the disk of broker",
        "broker",
        "the clock of broker",
        "a read of the metadata store took 2.0 s at broker",
        "broker",
    ]
    full = {**MACHINE, "disk": {"free": 2 << 30, "total": 100 << 30}}
    assert words(replace(GOOD, machines=[full])) == [
        (Severity.CRITICAL, "the disk of broker b1:8080 has 2,048 MiB left of 102,400 MiB")
    ]


def test_moving_metadata_is_a_warning() -> None:
    assert words(replace(GOOD, migration_phase="COPYING")) == [
        (Severity.WARNING, "the metadata is being moved to another store: COPYING")
    ]


def test_first_copy_of_the_metadata_is_a_warning_and_a_failed_one_is_none() -> None:
    copying = {"phase": "NOT_STARTED", "subPhase": "PRE_COPY"}
    assert words(replace(GOOD, migration_phase=migration_step(copying))) == [
        (Severity.WARNING, "the metadata is being moved to another store: PRE_COPY")
    ]
    for status in ({}, {"phase": "NOT_STARTED", "subPhase": None}, {"phase": "FAILED", "subPhase": "PRE_COPY"}):
        assert findings(replace(GOOD, migration_phase=migration_step(status))) == []


def test_topics() -> None:
    unread = TopicFacts("t", backlogs={"s": 1_234, "empty": 0}, consumers={"s": 0})
    assert words(replace(GOOD, topics=[unread])) == [
        (Severity.WARNING, "t: 1,234 messages wait for subscription s, which has no consumer")
    ]
    full = TopicFacts("t", active=8, segments_max=8, suppressed=["split: too many segments"])
    assert words(replace(GOOD, topics=[full])) == [
        (Severity.WARNING, "t has 8 active segments, which is its limit"),
        (Severity.WARNING, "t: auto-scaling may not split: too many segments"),
    ]
    assert words(replace(GOOD, topics=[TopicFacts("t", error="no answer")])) == [(Severity.CRITICAL, "t: no answer")]


def test_operation_that_does_not_end_comes_first() -> None:
    topics = [TopicFacts("a", backlogs={"s": 1}), TopicFacts("b", operation=SPLIT)]
    found = findings(replace(GOOD, topics=topics))
    assert [one.severity for one in found] == [Severity.CRITICAL, Severity.WARNING]
    assert found[0].what == "b: a split runs for 61 s (SEAL)"
    assert severity_of(found) == Severity.CRITICAL
    young = {**SPLIT, "startedAtMs": NOW - 1_000}
    assert findings(replace(GOOD, topics=[TopicFacts("b", operation=young)])) == []
