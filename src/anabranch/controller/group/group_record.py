"""The stored record of an ordered subscription's group: sessions, drained segments, assignment, progress, last seek.

They are one compare-and-set unit. So a grant is never durable without the drain that allowed it, nor a seek without the
revocation of what was granted before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.controller.group.assignment_record import AssignmentRecord
from anabranch.controller.group.consumer_sessions import SessionsRecord
from anabranch.controller.group.drain_tracker import DrainRecord
from anabranch.model.errors import Error
from anabranch.model.reached import Reached


class BadGroup(Error):
    """A group record that this version cannot read."""

    code = "bad-group"


@dataclass(frozen=True, slots=True)
class GroupMove:
    """A seek of the subscription. From `generation` on no consumer has a segment, until it is over."""

    operation_id: str
    generation: int
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """`subscription_incarnation` is the id of the call that created the subscription. A record of another incarnation
    is ignored."""

    subscription_incarnation: str
    leader_term: int = 0
    sessions: SessionsRecord = field(default_factory=SessionsRecord)
    drain: DrainRecord = field(default_factory=DrainRecord)
    assignment: AssignmentRecord = field(default_factory=AssignmentRecord)
    reached: Mapping[int, Reached] = field(default_factory=dict)  # of checkpoint groups, by segment
    move: GroupMove | None = None  # the last one

    def encode(self) -> bytes:
        value: dict[str, Any] = {
            "life": self.subscription_incarnation,
            "leaderTerm": self.leader_term,
            "sessions": self.sessions.to_json(),
            "drain": self.drain.to_json(),
            "assignment": self.assignment.to_json(),
        }
        if self.move is not None:
            value["move"] = {"id": self.move.operation_id, "at": self.move.generation, "isOver": self.move.is_over}
        if self.reached:
            value["reached"] = {str(one): it.to_json() for one, it in self.reached.items()}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> GroupRecord:
        try:
            value = json.loads(data)
            return cls(
                str(value["life"]),
                int(value["leaderTerm"]),
                SessionsRecord.from_json(value["sessions"]),
                DrainRecord.from_json(value["drain"]),
                AssignmentRecord.from_json(value["assignment"]),
                {int(one): Reached.from_json(it) for one, it in value.get("reached", {}).items()},
                _move(value.get("move")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadGroup(f"not a group record: {type(error).__name__}: {error}") from error


def _move(value: Mapping[str, Any] | None) -> GroupMove | None:
    return None if value is None else GroupMove(str(value["id"]), int(value["at"]), bool(value["isOver"]))
