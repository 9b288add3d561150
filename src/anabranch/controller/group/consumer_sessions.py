"""Consumer sessions of one subscription: durable by consumer name; a session survives broken connections. Never awaits.

    register ──▶ connected ── connection lost ──▶ in grace ── registered again ──▶ connected
                     │                               └── grace over ──▶ gone
                     └── leave ──▶ gone at once

A session is identified by its consumer's name and has at most one connection. A later connection replaces the former
one, which is fenced: its close or leave no longer counts. If the new connection may belong to another process, the
assignment is renewed, so that owners of segments no longer admit the old process.

Two consumers with one name cannot be told from a restart, so the newer one takes the session over, for good. Each
consumer sends an instance number. Its own reconnects have the same number; an instance that was replaced, or that comes
back to a session of another instance, is refused. Otherwise two consumers would take the session from each other for
ever. Clients that send no instance (Pulsar's, older ones of ours) always take over.

Time arrives with the events. Joining and leaving are durable before they are answered; reconnecting writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from anabranch.controller.events import SessionTaken
from anabranch.model.errors import Error, LimitExceeded

GRACE_MS = 60_000
SESSIONS_MAX = 10_000
REPLACED_MAX = 4  # per session; an instance replaced earlier is recognised by the assignment that it has seen
LEFT = "left"
EXPIRED = "grace period over"

Connection = int
"""Number of a link; the coordinator uses each number once."""


class TooManySessions(LimitExceeded):
    code = "too-many-consumers"


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Registered:
    """A consumer requests its assignment."""

    name: str
    connection: Connection
    is_new: bool = False  # it has no earlier assignment, so it is another process than before
    continues: bool = False  # its client reads children after their parents itself (`continuation.py`)
    instance: int | None = None  # of the consumer object; None: the client sends none
    shares: bool = False  # its client can share a segment, by entry buckets (`sharing.py`)


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is closed."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class LeftCleanly:
    """The consumer was closed. `connection` None: by an operator."""

    name: str
    connection: Connection | None


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. Needed at the latest at the time of the last WakeAt."""


Event = Registered | Disconnected | LeftCleanly | Ticked


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SaveSessions:
    """Make `record()` durable before any effect that follows."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The consumer is a new member, for the assignment."""

    name: str


@dataclass(frozen=True, slots=True)
class Departed:
    """The consumer is no longer a member."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Another process may use the session now: its assignment gets a new generation before Welcome."""

    name: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to Registered: the session's assignments are sent to this connection from now on."""

    name: str
    connection: Connection


@dataclass(frozen=True, slots=True)
class Fence:
    """Another connection took over the session. This one gets an empty assignment and nothing after that. `error`: it
    belongs to a consumer that was replaced and must not register again."""

    name: str
    connection: Connection
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    name: str
    connection: Connection
    error: Error


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Ticked at this time. Replaces the last WakeAt."""

    at_ms: int


Effect = SaveSessions | Arrived | Departed | Renew | Welcome | Fence | Refuse | WakeAt


# stored ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SessionsRecord:
    """The durable part: the members, when each joined (wall clock, for display), which of them continue or can share
    segments, and by member its instance and those that it has replaced, the latest last."""

    joined_at_ms: Mapping[str, int] = field(default_factory=dict)
    continuing: frozenset[str] = frozenset()
    instances: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sharing: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for name, at in sorted(self.joined_at_ms.items()):
            one = value[name] = {"joinedAtMs": at}
            if name in self.continuing:
                one["continues"] = True
            if name in self.sharing:
                one["shares"] = True
            if name in self.instances:
                one["instance"] = self.instances[name]
            if name in self.replaced:
                one["replaced"] = list(self.replaced[name])
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SessionsRecord:
        continuing = frozenset(str(name) for name, one in value.items() if one.get("continues"))
        return cls(
            {str(name): int(one["joinedAtMs"]) for name, one in value.items()},
            continuing,
            {str(name): int(one["instance"]) for name, one in value.items() if "instance" in one},
            {str(name): tuple(map(int, one["replaced"])) for name, one in value.items() if "replaced" in one},
            frozenset(str(name) for name, one in value.items() if one.get("shares")),
        )


@dataclass(slots=True)
class _Session:
    joined_at_ms: int
    connection: Connection | None
    expires_at_ms: int | None  # set while it has no connection
    continues: bool = False
    instance: int | None = None  # None: its client sends none
    replaced: tuple[int, ...] = ()  # instances that had the session before, the latest last
    shares: bool = False


class Sessions:
    """For one subscription and one term of its topic's leader."""

    def __init__(
        self,
        *,
        record: SessionsRecord | None = None,
        now_ms: int = 0,
        grace_ms: int = GRACE_MS,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        """`record` has the members of the last leader. Each gets a full grace period."""
        self._grace_ms, self._sessions_max = grace_ms, sessions_max
        self._wake_at_ms: int | None = None
        found = record or SessionsRecord()
        self._sessions = {
            name: _Session(
                at,
                None,
                now_ms + grace_ms,
                name in found.continuing,
                found.instances.get(name),
                found.replaced.get(name, ()),
                name in found.sharing,
            )
            for name, at in found.joined_at_ms.items()
        }

    def begin(self) -> list[Effect]:
        return self._wake()

    # questions --------------------------------------------------------------------------------------------------------
    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._sessions)

    @property
    def continuing(self) -> frozenset[str]:
        """Members whose clients read children after their parents themselves."""
        return frozenset(name for name, session in self._sessions.items() if session.continues)

    @property
    def sharing(self) -> frozenset[str]:
        """Members whose clients can share a segment."""
        return frozenset(name for name, session in self._sessions.items() if session.shares)

    def connection(self, name: str) -> Connection | None:
        """The session's connection; None in the grace period, and for unknown names."""
        session = self._sessions.get(name)
        return None if session is None else session.connection

    def is_current(self, name: str, connection: Connection) -> bool:
        """Is this the session's connection, so that its requests count?"""
        return self.connection(name) == connection

    def record(self) -> SessionsRecord:
        every = sorted(self._sessions.items())
        return SessionsRecord(
            {name: session.joined_at_ms for name, session in every},
            self.continuing,
            {name: session.instance for name, session in every if session.instance is not None},
            {name: session.replaced for name, session in every if session.replaced},
            self.sharing,
        )

    # the machine ------------------------------------------------------------------------------------------------------
    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Registered():
                effects = self._register(event, now_ms)
            case Disconnected(connection):
                for session in self._sessions.values():
                    if session.connection == connection:
                        session.connection, session.expires_at_ms = None, now_ms + self._grace_ms
                effects = []
            case LeftCleanly(name, left):
                counts = name in self._sessions and (left is None or self.is_current(name, left))
                effects = self._remove([name], LEFT) if counts else []
            case Ticked():
                over = [
                    name
                    for name, session in self._sessions.items()
                    if session.expires_at_ms is not None and session.expires_at_ms <= now_ms
                ]
                effects = self._remove(sorted(over), EXPIRED)
            case _:
                assert_never(event)
        return effects + self._wake()

    def _register(self, event: Registered, now_ms: int) -> list[Effect]:
        name, connection = event.name, event.connection
        session, effects = self._sessions.get(name), list[Effect]()
        if session is None:
            if len(self._sessions) >= self._sessions_max:
                error = TooManySessions(f"the subscription has {self._sessions_max} consumers, which is its limit")
                return [Refuse(name, connection, error)]
            session = self._sessions[name] = _Session(
                now_ms, None, None, event.continues, event.instance, (), event.shares
            )
            effects += [SaveSessions(), Arrived(name)]
        elif _is_replaced(session, event):
            return [Refuse(name, connection, taken(name))]
        else:
            effects += self._take_over(session, event)
        if (session.continues, session.shares) != (event.continues, event.shares):  # another version, or another option
            session.continues, session.shares = event.continues, event.shares
            effects.append(SaveSessions())
        session.connection, session.expires_at_ms = connection, None
        return [*effects, Welcome(name, connection)]

    def _take_over(self, session: _Session, event: Registered) -> list[Effect]:
        """The session exists: the same consumer reconnects, or another one takes it over."""
        effects: list[Effect] = []
        is_other = session.instance is not None and session.instance != event.instance
        if session.connection not in (None, event.connection):
            assert session.connection is not None
            error = taken(event.name) if is_other else None
            effects += [Fence(event.name, session.connection, error), Renew(event.name)]
        elif event.is_new or is_other:
            effects.append(Renew(event.name))
        if session.instance is not None and is_other:
            session.replaced = (*session.replaced, session.instance)[-REPLACED_MAX:]
        if session.instance != event.instance:
            session.instance = event.instance
            effects.append(SaveSessions())
        return effects

    def _remove(self, names: list[str], reason: str) -> list[Effect]:
        for name in names:
            del self._sessions[name]
        return [SaveSessions(), *(Departed(name, reason) for name in names)] if names else []

    def _wake(self) -> list[Effect]:
        """The next end of a grace period, if it has changed."""
        times = [session.expires_at_ms for session in self._sessions.values() if session.expires_at_ms is not None]
        earliest = min(times, default=None)
        if earliest == self._wake_at_ms:
            return []
        self._wake_at_ms = earliest
        return [] if earliest is None else [WakeAt(earliest)]


def taken(name: str) -> SessionTaken:
    return SessionTaken(
        f"another consumer registered as {name!r} and took over its segments; give each consumer a different name"
    )


def _is_replaced(session: _Session, event: Registered) -> bool:
    """Is this a consumer that lost the session to another one? It may not know it: its connection was broken then."""
    if event.instance is None or event.instance == session.instance:
        return False
    return event.instance in session.replaced or (session.instance is not None and not event.is_new)
