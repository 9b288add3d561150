"""What needs attention in a cluster: facts in, lines out. Pure. The console's overview has the same rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

OPERATION_MS_MAX = 60_000
DISK_LOW, DISK_FULL = 0.1, 0.03  # of the disk that is free
FILES_HIGH = 0.8  # of the limit
SKEW_MS_MAX = 1_000
STORE_MS_MAX = 1_000
_QUIET_PHASES = ("NOT_STARTED", "NONE", "COMPLETED", "ABORTED", "FAILED")


class Severity(IntEnum):
    """Also the exit code of `anabranch doctor`."""

    GOOD = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    what: str
    todo: str = ""

    def as_object(self) -> dict[str, str]:
        return {"severity": self.severity.name.lower(), "what": self.what, "todo": self.todo}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    name: str
    rate_in: float = 0.0  # messages per second
    rate_out: float = 0.0
    stored: int = 0
    backlogs: Mapping[str, int] = field(default_factory=dict)  # by subscription
    consumers: Mapping[str, int] = field(default_factory=dict)
    active: int = 0  # segments; 0 for a regular topic
    segments_max: int = 0
    operation: Mapping[str, Any] | None = None
    suppressed: Sequence[str] = ()  # what auto-scaling wants and may not do
    error: str = ""  # its stats could not be read

    @property
    def backlog(self) -> int:
        return max(self.backlogs.values(), default=0)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    now_ms: int
    health: str = ""  # empty: the broker serves
    brokers: Sequence[Mapping[str, Any]] | None = None  # None: not allowed to see
    machines: Sequence[Mapping[str, Any]] = ()  # of each broker; empty: not allowed to see
    migration_phase: str = ""
    topics: Sequence[TopicFacts] = ()
    topics_unread: int = 0  # beyond the bound


def migration_step(status: Mapping[str, Any]) -> str:
    """The phase of a migration of the metadata; its step during the first copy, which PIP-454 calls NOT_STARTED."""
    phase = str(status.get("phase") or "")
    return str(status.get("subPhase") or phase) if phase == "NOT_STARTED" else phase


def findings(facts: ClusterFacts) -> list[Finding]:
    """The most severe first."""
    found = [*_of_broker(facts), *_of_brokers(facts.brokers), *_of_metadata(facts.migration_phase)]
    for machine in facts.machines:
        found += _of_machine(machine)
    for topic in facts.topics:
        found += _of_topic(topic, facts.now_ms)
    return sorted(found, key=lambda one: -one.severity)


def severity_of(found: Sequence[Finding]) -> Severity:
    return max((one.severity for one in found), default=Severity.GOOD)


def _of_broker(facts: ClusterFacts) -> list[Finding]:
    found = []
    if facts.health:
        found.append(Finding(Severity.CRITICAL, f"the broker does not serve: {facts.health}", "see its log"))
    return found


def _of_brokers(brokers: Sequence[Mapping[str, Any]] | None) -> list[Finding]:
    if brokers is None:
        return []
    if not brokers:
        return [Finding(Severity.CRITICAL, "no broker is registered", "start one: `anabranch broker`")]
    found = []
    if not any(one.get("leader") for one in brokers):
        found.append(Finding(Severity.CRITICAL, "no broker leads", "wait for the election; look at the metadata store"))
    for one in brokers:
        if one.get("draining"):
            text = f"broker {one['id']} is draining: it gets no topics"
            found.append(Finding(Severity.WARNING, text, f"`anabranch admin brokers resume {one['id']}` ends that"))
    versions = sorted({str(one.get("version", "")) for one in brokers})
    if len(versions) > 1:
        text = f"brokers run different versions: {', '.join(versions)}"
        found.append(Finding(Severity.WARNING, text, "finish the rolling update"))
    return found


def _of_machine(machine: Mapping[str, Any]) -> list[Finding]:
    found, name, disk, files = [], machine["broker"], machine["disk"], machine["files"]
    if disk is not None and disk["free"] < DISK_LOW * disk["total"]:
        severity = Severity.CRITICAL if disk["free"] < DISK_FULL * disk["total"] else Severity.WARNING
        text = f"the disk of broker {name} has {disk['free'] >> 20:,} MiB left of {disk['total'] >> 20:,} MiB"
        found.append(Finding(severity, text, "free space, shorten retention, or delete topics"))
    if files["open"] > FILES_HIGH * files["limit"]:
        text = f"broker {name} has {files['open']:,} files and connections open of {files['limit']:,} allowed"
        found.append(Finding(Severity.WARNING, text, "raise its limit (ulimit -n, LimitNOFILE)"))
    if machine["clockSkewMs"] > SKEW_MS_MAX:
        text = f"the clock of broker {name} differs by at least {machine['clockSkewMs'] / 1000:.1f} s"
        found.append(Finding(Severity.WARNING, text, "synchronize the clocks (NTP)"))
    if machine["metadataMs"] > STORE_MS_MAX:
        text = f"a read of the metadata store took {machine['metadataMs'] / 1000:.1f} s at broker {name}"
        found.append(Finding(Severity.WARNING, text, "look at the store and the network to it"))
    if machine["sync"] == "none":
        text = f"broker {name} confirms messages before they are on disk (storage.sync = none)"
        found.append(Finding(Severity.WARNING, text, "set storage.sync = group unless messages may be lost"))
    return found


def _of_metadata(phase: str) -> list[Finding]:
    if not phase or phase in _QUIET_PHASES:
        return []
    todo = "`anabranch admin metadata-migration status` shows its progress"
    return [Finding(Severity.WARNING, f"the metadata is being moved to another store: {phase}", todo)]


def _of_topic(topic: TopicFacts, now_ms: int) -> list[Finding]:
    if topic.error:
        return [Finding(Severity.CRITICAL, f"{topic.name}: {topic.error}", "see the log of its broker")]
    found = []
    for name, backlog in topic.backlogs.items():
        if backlog > 0 and topic.consumers.get(name, 0) == 0:
            text = f"{topic.name}: {backlog:,} messages wait for subscription {name}, which has no consumer"
            found.append(Finding(Severity.WARNING, text, "start a consumer, or delete the subscription"))
    if topic.operation is not None and now_ms - int(topic.operation["startedAtMs"]) > OPERATION_MS_MAX:
        seconds = (now_ms - int(topic.operation["startedAtMs"])) // 1000
        text = (
            f"{topic.name}: a {str(topic.operation['kind']).lower()} runs for {seconds} s ({topic.operation['phase']})"
        )
        found.append(Finding(Severity.CRITICAL, text, "see the log of the topic's leader"))
    if topic.segments_max and topic.active >= topic.segments_max:
        text = f"{topic.name} has {topic.active} active segments, which is its limit"
        found.append(Finding(Severity.WARNING, text, "raise maxSegments, or add consumers"))
    found += [Finding(Severity.WARNING, f"{topic.name}: auto-scaling may not {text}") for text in topic.suppressed]
    return found
