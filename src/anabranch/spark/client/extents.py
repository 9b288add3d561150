"""What a cluster can say about its topics: the answer (`Extent`), the port, and what each kind of cluster can do.

| cluster                        | module           | says                                                           |
|--------------------------------|------------------|----------------------------------------------------------------|
| Anabranch                      | `broker_extents` | everything, exactly                                            |
| Apache Pulsar                  | `pulsar_extents` | where a topic begins and ends, the first entry of a time       |
| Apache Pulsar, with `adminUrl` | `pulsar_extents` | also ledgers and bytes; messages by the mean of the next ones  |

Which one it is, is found when a process connects first. What a cluster cannot say is refused by name (`ClusterCannot`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.model.position import EARLIEST, Position
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.offsets.topic_view import LedgerSum


class ClusterCannot(BadSparkOption):
    """An option needs something that this kind of cluster does not say."""

    code = "cluster-cannot"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a query can rely on."""

    system: str
    is_foreign: bool  # a broker without Anabranch's extensions
    lists_ledgers: bool  # with entries and bytes, so that both can be counted
    counts_messages: bool  # exactly; else by the mean of the next entries, where ledgers are listed

    def check(self, wanted: Mapping[str, bool]) -> None:
        """Options that need counts, and whether they are given; ClusterCannot names the first that cannot be served."""
        if self.lists_ledgers:
            return
        for name, is_given in wanted.items():
            if is_given:
                raise ClusterCannot(
                    f"option {name} needs the number of messages or bytes in a topic, which {self.system} does not say "
                    "over its binary protocol: give adminUrl, too"
                )


ANABRANCH = Capabilities("Anabranch", is_foreign=False, lists_ledgers=True, counts_messages=True)
PULSAR = Capabilities("Apache Pulsar", is_foreign=True, lists_ledgers=False, counts_messages=False)
PULSAR_ADMIN = Capabilities("Apache Pulsar with adminUrl", is_foreign=True, lists_ledgers=True, counts_messages=False)


@dataclass(frozen=True, slots=True)
class Extent:
    """What one topic or segment has; `upto`, `at_time`, `messages` and `bytes` answer what was asked."""

    first: Position
    end: Position
    trimmed_to: Position
    is_terminated: bool = False
    incarnation: int = 0
    deduplicates: bool = True
    messages: int = 0
    bytes: int = 0
    upto: Position = EARLIEST
    at_time: Position = EARLIEST
    messages_to_time: int = 0
    ledgers: tuple[LedgerSum, ...] = ()
    is_trim_exact: bool = True


class Extents(Protocol):
    """Asks one kind of cluster."""

    capabilities: Capabilities

    async def extent(self, topic: str, fields: Mapping[str, Any]) -> Extent:
        """`fields`: `start` (messages and bytes from there on), `messages_max`, `publish_time`."""
        ...

    async def deduplicates(self, topic: str) -> bool: ...

    async def close(self) -> None: ...
