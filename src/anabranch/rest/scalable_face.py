"""What HTTP may ask of scalable topics. Topics are named in full (`topic://t/n/x`).

Calls that change something, and those about consumers, need the topic's controller: where another broker leads it,
`BrokerFace.check_served` has sent the caller there before. Every call is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class ScalableFace(Protocol):
    async def names(self, namespace: str, properties: Mapping[str, str]) -> list[str]:
        """Full names, sorted, of the topics that have all these properties; NotFound for an unknown namespace."""

    async def create(self, topic: str, segments: int, properties: Mapping[str, str]) -> None: ...

    async def delete(self, topic: str, force: bool) -> None:
        """Without `force` refused (NotEmpty, Busy) while producers or consumers are attached."""

    async def metadata(self, topic: str) -> dict[str, Any]:
        """The stored record (PIP-468's names) with Java's derived booleans: sealed, active, root, leaf, legacy."""

    async def stats(self, topic: str) -> dict[str, Any]:
        """Pulsar's `epoch, totalSegments, activeSegments, sealedSegments, segments{id: {name, state}},
        subscriptions{name: {consumerCount}}` and ours beside them: per segment `hashRange, broker, parentIds, childIds,
        createdAtMs, sealedAtMs, rates{in|out: {msg|bytes: {10|60: per second}}}, messages, bytes, backlog{subscription:
        messages}, consumers, producers`; per subscription `type, msgBacklog, segments{id: …}` (as `subscription` has
        them); `controller`, `leaderTerm`, `incarnation`, `operation` (None, or `id, kind, phase, parents, children,
        startedAtMs, reason`), `lastOperation`, `properties`."""

    async def split(
        self, topic: str, segment_id: int, ways: int, points: Sequence[int] | None, operation_id: str | None
    ) -> dict[str, Any]:
        """`{"operation": id, "epoch": n}` once it is done. `points`: where the 2nd, 3rd … child begin."""

    async def merge(self, topic: str, segment_ids: Sequence[int], operation_id: str | None) -> dict[str, Any]:
        """The same; a run of neighbours, named in any order."""

    # -- subscriptions of the whole topic

    async def create_subscription(self, topic: str, name: str, kind: str, start: str) -> None:
        """`kind` is STREAM, QUEUE or CHECKPOINT, `start` earliest or latest; AlreadyExists when it has another kind."""

    async def delete_subscription(self, topic: str, name: str, force: bool) -> None: ...

    async def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """`type, start, state, generation, sessions[{name, connected, graceEndsAtMs, segments}], drained[ids],
        backlog{segment id: messages}, msgBacklog, segments{id: {position, backlog, drained, consumer, consumers}}`."""

    async def seek(self, topic: str, name: str, publish_ms: int) -> None: ...

    async def clear_backlog(self, topic: str, name: str) -> None: ...
