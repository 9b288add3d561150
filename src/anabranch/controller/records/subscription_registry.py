"""The stored registry of a topic's subscriptions: one record beside the topic's, one compare-and-set unit.

It is one record, not one per subscription, so that a former leader cannot add a subscription after its successor has
started: a writer needs the record's current version, and a new leader raises `leaderTerm` first.

    CREATING ──── cursors everywhere ────▶ READY ──▶ DELETING ──── no cursor left ────▶ gone
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from anabranch.controller.segment_host import Start
from anabranch.model.errors import Error
from anabranch.model.position import Position


class BadRegistry(Error):
    """A registry record that this version cannot read."""

    code = "bad-registry"


class SubscriptionKind(StrEnum):
    STREAM = "STREAM"  # ordered, segments are assigned
    QUEUE = "QUEUE"  # every consumer is attached to every segment
    CHECKPOINT = "CHECKPOINT"  # ordered, assigned, positions are kept by the application

    @property
    def has_cursors(self) -> bool:
        return self is not SubscriptionKind.CHECKPOINT


class SubscriptionState(StrEnum):
    CREATING = "CREATING"  # registered; cursors are being created. New segments get one from here on
    READY = "READY"
    DELETING = "DELETING"  # new segments get no cursor any more


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """All of the segment up to this entry is read, except `unread`: bits of messages in the entry's batch."""

    segment_id: int
    position: Position
    unread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """In progress over all segments: a seek to a publish time, a seek behind `positions`, or (neither) clearing of the
    backlog."""

    operation_id: str
    publish_ms: int | None
    positions: tuple[SegmentPosition, ...] = ()

    @property
    def is_seek(self) -> bool:
        return self.publish_ms is not None or bool(self.positions)


@dataclass(frozen=True, slots=True)
class Subscription:
    name: str
    kind: SubscriptionKind
    start: Start  # set by the first subscriber
    state: SubscriptionState
    created_at_epoch: int  # segments of later epochs are read from their beginning
    created_at_ms: int
    operation_id: str = ""  # of the call that created it
    move: Move | None = None
    incarnations_before: int = 0  # subscriptions of the topic deleted before this one was created

    @property
    def is_sought_in_order(self) -> bool:
        """A seek runs in which children must not be read again before their parents."""
        return self.kind is SubscriptionKind.STREAM and self.move is not None and self.move.is_seek

    @property
    def first_generation(self) -> int:
        """The first assignment generation: above those of all former incarnations, which segments may remember."""
        return self.incarnations_before << 32

    def start_on(self, created_at_epoch: int) -> Start:
        """Start of the cursor on a segment created at that epoch."""
        return Start.EARLIEST if created_at_epoch > self.created_at_epoch else self.start


@dataclass(frozen=True, slots=True)
class Registry:
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    leader_term: int = 0
    incarnation: int = 0  # of the topic; a registry of another incarnation is ignored
    deleted: int = 0  # number of deleted subscriptions

    def with_one(self, subscription: Subscription) -> Registry:
        return replace(self, subscriptions={**self.subscriptions, subscription.name: subscription})

    def without(self, name: str) -> Registry:
        left = {k: v for k, v in self.subscriptions.items() if k != name}
        return replace(self, subscriptions=left, deleted=self.deleted + 1)

    @property
    def cursors(self) -> frozenset[str]:
        """The subscriptions whose cursors every segment has and every new segment gets."""
        found = self.subscriptions.values()
        return frozenset(s.name for s in found if s.kind.has_cursors and s.state is not SubscriptionState.DELETING)

    def encode(self) -> bytes:
        value = {
            "leaderTerm": self.leader_term,
            "incarnation": self.incarnation,
            "deleted": self.deleted,
            "subscriptions": {name: _subscription_json(s) for name, s in sorted(self.subscriptions.items())},
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Registry:
        try:
            value = json.loads(data)
            found = {str(name): _subscription(name, one) for name, one in value["subscriptions"].items()}
            deleted = int(value.get("deleted", 0))
            return cls(found, int(value["leaderTerm"]), int(value["incarnation"]), deleted)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRegistry(f"not a registry of subscriptions: {type(error).__name__}: {error}") from error


def _subscription_json(subscription: Subscription) -> dict[str, Any]:
    value: dict[str, Any] = {
        "type": subscription.kind.value,
        "initialPosition": subscription.start.value,
        "state": subscription.state.value,
        "createdAtEpoch": subscription.created_at_epoch,
        "createdAtMs": subscription.created_at_ms,
        "operation": subscription.operation_id,
        "livesBefore": subscription.incarnations_before,
    }
    if subscription.move is not None:
        move = subscription.move
        value["move"] = {"id": move.operation_id, "publishMs": move.publish_ms}
        if move.positions:
            value["move"]["publishMs"] = 0  # an earlier version would clear the backlog if there were none
            value["move"]["positions"] = [[one.segment_id, *one.position, list(one.unread)] for one in move.positions]
    return value


def _subscription(name: str, value: Mapping[str, Any]) -> Subscription:
    return Subscription(
        name,
        SubscriptionKind(value["type"]),
        Start(value["initialPosition"]),
        SubscriptionState(value["state"]),
        int(value["createdAtEpoch"]),
        int(value["createdAtMs"]),
        str(value["operation"]),
        None if value.get("move") is None else _move(value["move"]),
        int(value.get("livesBefore", 0)),
    )


def _move(value: Mapping[str, Any]) -> Move:
    positions = tuple(
        SegmentPosition(int(segment_id), Position(int(ledger), int(entry)), tuple(map(int, unread)))
        for segment_id, ledger, entry, unread in value.get("positions", ())
    )
    has_time = value["publishMs"] is not None and not positions
    return Move(str(value["id"]), int(value["publishMs"]) if has_time else None, positions)
