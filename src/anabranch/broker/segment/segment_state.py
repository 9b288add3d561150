"""What the owner of a segment stores in addition to the topic: fencing token, incarnation, seal, state of cursors.

A state machine with its two stored forms; never awaits. Every request costs one durable write:

| what | where | written with |
|---|---|---|
| incarnation, id, operation, first fencing token | property of the topic's record (`identity`) | the creation |
| seal: time, operation, children, fencing token | the same property | the end of the topic (`terminate`), one write |
| last position | the topic's record | the same |
| later fencing tokens; moves, drains, rewind counts of cursors | a blob of the topic's state (`dump`) | their cursors |
| cursors of an adopted regular topic that it did not have before | the same blob | their creation |
| holds of checkpoint groups | the same blob | the request that sets them |
| fences of readers | the same blob | the request, or at the latest the first ack of the consumer that raised it |
| last sequence ids of producers | deduplication of the topic: snapshot, then the log | – |
| fencing token of a missing segment | property of its tombstone | the deletion, or the fencing request |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.broker.segment.reader_fence import ReaderFence
from anabranch.controller.segment_host import (
    Drained,
    FencingToken,
    OtherIncarnation,
    Refilled,
    SegmentRef,
    StaleRequest,
    StaleTerm,
)
from anabranch.model.names import TopicName
from anabranch.model.position import Position

PROPERTY = "segment"  # of the topic's record
BLOB = "segment"  # of the topic's state
MOVES_MAX = 16  # kept per cursor; a topic moves its cursors one operation after another
NEVER = FencingToken(-1, 0)
UNSAID = ((), False, 0, False, 0, "", None, None, 0)
"""Defaults for what earlier versions did not store for a cursor."""


def check_fencing_token(name: TopicName, known: FencingToken, fencing_token: FencingToken) -> None:
    """Raises StaleTerm or StaleRequest for a token that is lower than the known one."""
    if fencing_token.term < known.term:
        raise StaleTerm(f"{name}: term {fencing_token.term} is over, term {known.term} has sent requests")
    if fencing_token < known:
        raise StaleRequest(f"{name}: request {fencing_token.number} was overtaken by request {known.number}")


@dataclass(frozen=True, slots=True)
class SealNote:
    """The seal of the segment, as far as it is not in the topic's own record."""

    at_ms: int
    operation: str
    children: tuple[SegmentRef, ...]


@dataclass(slots=True)
class OwnedCursorState:
    moves: list[str] = field(default_factory=list)  # the last operations that moved it
    is_drained: bool = False
    rewind_count: int = 0  # seeks that took back a drain
    is_undecided: bool = False  # the first consumer decides where it starts (`Start.FIRST`)
    born_at: Position | None = None  # last entry before its creation: what "latest" means for that consumer
    fence: ReaderFence = field(default_factory=ReaderFence)  # of an ordered subscription
    hold: Position | None = None  # of a checkpoint group, which has no cursor: later entries are retained
    seek_count: int = 0  # seeks, so that a consumer which was not connected notices one


@dataclass(slots=True)
class OwnedSegmentState:
    ref: SegmentRef
    created_by: str
    fencing_token: FencingToken
    sealed: SealNote | None = None
    cursors: dict[str, OwnedCursorState] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # cursors that a regular topic got as a segment, until it is sealed

    # requests ---------------------------------------------------------------------------------------------------------
    def admit(self, fencing_token: FencingToken) -> None:
        """Refuses lower tokens from now on; durable with the next write."""
        check_fencing_token(self.ref.name, self.fencing_token, fencing_token)
        self.fencing_token = fencing_token

    def check_incarnation(self, ref: SegmentRef) -> None:
        if ref.incarnation != self.ref.incarnation:
            raise OtherIncarnation(f"{self.ref.name} belongs to incarnation {self.ref.incarnation}")

    # cursors ----------------------------------------------------------------------------------------------------------
    def of(self, subscription: str) -> OwnedCursorState:
        return self.cursors.setdefault(subscription, OwnedCursorState())

    def has_moved(self, subscription: str, operation: str) -> bool:
        found = self.cursors.get(subscription)
        return found is not None and operation in found.moves

    def note_move(self, subscription: str, operation: str) -> None:
        moves = self.of(subscription).moves
        moves.append(operation)
        del moves[:-MOVES_MAX]

    def note_seek(self, subscription: str) -> int:
        state = self.of(subscription)
        state.seek_count += 1
        return state.seek_count

    def seek_count(self, subscription: str) -> int:
        found = self.cursors.get(subscription)
        return 0 if found is None else found.seek_count

    def update_drained(self, subscription: str, *, has_backlog: bool) -> Drained | Refilled | None:
        """To be called when the cursor may have moved. The returned event is sent once it is durable."""
        state = self.cursors.get(subscription)
        is_drained = self.sealed is not None and not has_backlog
        if is_drained == (state is not None and state.is_drained):
            return None
        state = self.of(subscription)
        state.is_drained = is_drained
        state.rewind_count += not is_drained
        return (Drained if is_drained else Refilled)(self.ref, subscription, state.rewind_count)

    def set_hold(self, group: str, position: Position | None) -> None:
        if position is not None or group in self.cursors:
            self.of(group).hold = position

    @property
    def holds(self) -> dict[str, Position]:
        """Holds by checkpoint group."""
        return {name: one.hold for name, one in self.cursors.items() if one.hold is not None}

    @property
    def hold(self) -> Position | None:
        """The last entry that no checkpoint group needs; None without checkpoint groups."""
        return min((one.hold for one in self.cursors.values() if one.hold is not None), default=None)

    @property
    def drained(self) -> frozenset[tuple[str, int]]:
        return frozenset((name, one.rewind_count) for name, one in self.cursors.items() if one.is_drained)

    # stored forms -----------------------------------------------------------------------------------------------------
    def identity(self) -> dict[str, str]:
        """Properties of the topic's record."""
        value: dict[str, Any] = {
            "incarnation": self.ref.incarnation,
            "segmentId": self.ref.segment_id,
            "createdBy": self.created_by,
            "mandate": [self.fencing_token.term, self.fencing_token.number],
        }
        if self.sealed is not None:
            value["sealed"] = {
                "atMs": self.sealed.at_ms,
                "operation": self.sealed.operation,
                "children": [[str(one.name), one.segment_id] for one in self.sealed.children],
            }
        return {PROPERTY: json.dumps(value, separators=(",", ":"))}

    def dump(self) -> bytes:
        """Blob of the topic's state."""
        cursors = {
            name: [
                one.moves,
                one.is_drained,
                one.rewind_count,
                one.is_undecided,
                one.fence.generation,
                one.fence.holder,
                one.hold,
                one.born_at,
                one.seek_count,
            ]
            for name, one in self.cursors.items()
        }
        value: dict[str, Any] = {
            "mandate": [self.fencing_token.term, self.fencing_token.number],
            "cursors": cursors,
        }
        if self.made and self.sealed is None:
            value["made"] = self.made
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def load(cls, name: TopicName, properties: Mapping[str, str], blob: bytes | None) -> OwnedSegmentState:
        value = json.loads(properties[PROPERTY])
        incarnation = int(value["incarnation"])
        sealed = value.get("sealed")
        state = cls(
            SegmentRef(name, incarnation, int(value["segmentId"])),
            str(value["createdBy"]),
            FencingToken(*value["mandate"]),
            None
            if sealed is None
            else SealNote(
                int(sealed["atMs"]),
                str(sealed["operation"]),
                tuple(SegmentRef(TopicName.parse(one), incarnation, int(number)) for one, number in sealed["children"]),
            ),
        )
        if blob:
            saved = json.loads(blob)
            state.fencing_token = max(state.fencing_token, FencingToken(*saved["mandate"]))
            state.made = list(map(str, saved.get("made", ())))
            for subscription, stored in saved["cursors"].items():
                said: list[Any] = [*stored, *UNSAID[len(stored) :]]
                moves, is_drained, rewind_count, is_undecided, generation, holder, hold, born_at, seeks = said
                state.cursors[str(subscription)] = OwnedCursorState(
                    list(moves),
                    bool(is_drained),
                    int(rewind_count),
                    bool(is_undecided),
                    _position(born_at),
                    ReaderFence(int(generation), str(holder)),
                    _position(hold),
                    int(seeks),
                )
        return state


def _position(value: list[Any] | None) -> Position | None:
    return None if value is None else Position(*map(int, value))


def tombstone_properties(fencing_token: FencingToken, now_ms: int) -> dict[str, str]:
    """Properties of a segment's tombstone."""
    value = {"mandate": [fencing_token.term, fencing_token.number], "buriedAtMs": now_ms}
    return {PROPERTY: json.dumps(value, separators=(",", ":"))}


def deleted_at_ms(properties: Mapping[str, str]) -> int:
    return int(json.loads(properties[PROPERTY])["buriedAtMs"])


def fencing_token_on(properties: Mapping[str, str]) -> FencingToken:
    """The fencing token in a topic record, of a segment or of a tombstone."""
    text = properties.get(PROPERTY)
    return NEVER if text is None else FencingToken(*json.loads(text)["mandate"])
