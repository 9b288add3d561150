"""Checks whether a history of concurrent register operations is linearizable, by the rules of the metadata port.

A register is one key of a metadata store: absent, or a value with a version. An operation lasts from `called` to
`returned`; a linearizable history has an order of all operations, each taking effect at one moment inside its span,
in which every answer is right. An operation of unknown outcome may take effect at any moment after its call, or never:
its span has no end and it may be left out.

Search after Wing and Gong: take any operation that could be next, undo when stuck, remember where one has been (which
operations are done, which state). Keys are independent registers, so each key is searched alone. What keeps the search
small: reads and refusals are taken as soon as they fit; writes of unknown outcome whose value was read did happen;
those whose value was never read are interchangeable.

Versions are only compared for equality. While a key exists no two writes have the same one; after a delete numbers may
come again. The version of a write with unknown outcome is unknown until a read shows it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from anabranch.metadata.interface import ABSENT, ANY, Expected, Rule, Version


class Kind(StrEnum):
    GET = "get"
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of a get, or the stored state; `version` None means not known yet."""

    value: bytes
    version: Version | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """A put's answer. A delete answers Wrote(None)."""

    version: Version | None


class Answer(StrEnum):
    NOTHING = "nothing"  # get: no such key; delete: KeyMissing
    REFUSED = "refused"  # VersionMismatch
    UNKNOWN = "unknown"  # OutcomeUnknown


Register = Found | None


@dataclass(frozen=True, slots=True)
class Operation:
    """Written values must be unique in a history, so that a read identifies its write."""

    client: str
    key: str
    kind: Kind
    called: float
    returned: float
    answer: Found | Wrote | Answer
    value: bytes = b""
    expected: Expected = ANY

    @property
    def is_optional(self) -> bool:
        return self.answer is Answer.UNKNOWN

    @property
    def end(self) -> float:
        return math.inf if self.is_optional else self.returned

    def __str__(self) -> str:
        expected = self.expected.value if isinstance(self.expected, Rule) else self.expected
        what = "" if self.kind is Kind.GET else f" {self.value!r} expected={expected}"
        return f"[{self.called:.6f} … {self.end:.6f}] {self.client}: {self.kind} {self.key}{what} -> {self.answer}"


def outcomes(operation: Operation, state: Register) -> Iterator[Register]:
    """States after the operation took effect in `state`; none if its answer is impossible there."""
    match operation.kind:
        case Kind.GET:
            yield from _read(operation.answer, state)
        case Kind.PUT:
            yield from _put(operation, state)
        case Kind.DELETE:
            yield from _delete(operation, state)


def _read(answer: Found | Wrote | Answer, state: Register) -> Iterator[Register]:
    if answer is Answer.NOTHING:
        if state is None:
            yield state
    elif isinstance(answer, Found) and state is not None and state.value == answer.value:
        if state.version is None or state.version == answer.version:
            yield answer


def _put(operation: Operation, state: Register) -> Iterator[Register]:
    if operation.answer is Answer.REFUSED:
        if _may_refuse(operation.expected, state):
            yield state
        return
    if not _may_allow(operation.expected, state):
        return
    version = operation.answer.version if isinstance(operation.answer, Wrote) else None
    if version is not None and state is not None and state.version == version:
        return  # two writes of an existing key never have the same version
    yield Found(operation.value, version)


def _delete(operation: Operation, state: Register) -> Iterator[Register]:
    if operation.answer is Answer.NOTHING:
        if state is None:
            yield state
    elif operation.answer is Answer.REFUSED:
        if state is not None and _may_refuse(operation.expected, state):
            yield state
    elif state is not None and _may_allow(operation.expected, state):
        yield None


def _may_allow(expected: Expected, state: Register) -> bool:
    if expected is ANY:
        return True
    if expected is ABSENT:
        return state is None
    return state is not None and state.version in (None, expected)


def _may_refuse(expected: Expected, state: Register) -> bool:
    if expected is ANY:
        return False
    if expected is ABSENT:
        return state is not None
    return state is None or state.version is None or state.version != expected


def explain(history: Iterable[Operation]) -> str | None:
    """None if the history is linearizable; otherwise a readable text about the first operation that does not fit."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key in sorted(by_key):
        complaint = _explain_key(by_key[key])
        if complaint is not None:
            return f"{key} is not linearizable\n{complaint}"
    return None


def _explain_key(operations: list[Operation]) -> str | None:
    certain, optional = _sort_out(operations)
    every = (1 << len(certain)) - 1
    best: tuple[int, Register] = (0, None)
    seen: dict[tuple[int, Register], list[int]] = {}
    stack: list[_Step] = [_Step(0, 0, None)]
    while stack:
        step = stack.pop()
        if step.done == every:
            return None
        if step.done.bit_count() > best[0].bit_count():
            best = (step.done, step.state)
        known = seen.setdefault((step.done, step.state), [])
        if any(used & step.used == used for used in known):
            continue  # been here with no fewer possibilities left
        known.append(step.used)
        stack += _following(step, certain, optional)
    return _complaint(certain, optional, *best)


@dataclass(frozen=True, slots=True)
class _Step:
    done: int  # bits of the certain operations in the order so far
    used: int  # bits of the optional ones
    state: Register


def _sort_out(operations: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Certain and optional operations. A value that was read was written by then at the latest."""
    first_seen: dict[bytes, float] = {}
    for operation in operations:
        if operation.kind is Kind.GET and isinstance(operation.answer, Found):
            value = operation.answer.value
            first_seen[value] = min(operation.returned, first_seen.get(value, math.inf))
    certain, optional = [], []
    for operation in operations:
        if not operation.is_optional:
            certain.append(operation)
        elif operation.kind is Kind.PUT and operation.value in first_seen:
            certain.append(replace(operation, answer=Wrote(None), returned=first_seen[operation.value]))
        else:
            # The value was never read: all such writes with the same condition are interchangeable.
            optional.append(replace(operation, value=b"(never seen)"))
    return sorted(certain, key=lambda o: o.called), sorted(optional, key=lambda o: o.called)


def _following(step: _Step, certain: list[Operation], optional: list[Operation]) -> list[_Step]:
    """Steps worth trying next, the best last."""
    done, used, state = step.done, step.used, step.state
    ready, before = _ready(certain, done)
    for place in ready:
        operation = certain[place]
        if operation.kind is Kind.GET or isinstance(operation.answer, Answer):
            for after in outcomes(operation, state):
                # It changes nothing and fits here: doing it later could not be better.
                return [_Step(done | 1 << place, used, after)]
    following: list[_Step] = []
    alike: set[tuple[Kind, Expected]] = set()
    for place, operation in enumerate(optional):
        if operation.called > before:
            break
        if not used >> place & 1 and (operation.kind, operation.expected) not in alike:
            alike.add((operation.kind, operation.expected))  # of those alike the earliest is as good as any
            following += [
                _Step(done, used | 1 << place, after) for after in outcomes(operation, state) if after != state
            ]
    for place in reversed(ready):
        following += [_Step(done | 1 << place, used, after) for after in outcomes(certain[place], state)]
    return following


def _ready(certain: list[Operation], done: int) -> tuple[list[int], float]:
    """Indexes of the operations that may be next, and the time by which one of them must be."""
    ready: list[int] = []
    before = math.inf
    place = (~done & (done + 1)).bit_length() - 1  # the first one not done
    while place < len(certain) and certain[place].called <= before:
        if not done >> place & 1:
            ready.append(place)
            before = min(before, certain[place].end)
        place += 1
    return [p for p in ready if certain[p].called <= before], before


def _complaint(certain: list[Operation], optional: list[Operation], done: int, state: Register) -> str:
    ready, before = _ready(certain, done)
    last = [o for place, o in enumerate(certain) if done >> place & 1][-8:]
    lines = [f"at best {done.bit_count()} of {len(certain)} operations fit; then the register holds {state}"]
    lines += ["the last that fit (by call):", *(f"  {o}" for o in last)]
    lines += ["none of these can be next:", *(f"  {certain[place]}" for place in ready)]
    open_ones = [o for o in optional if o.called <= before]
    lines += [f"nor any of {len(open_ones)} with unknown outcome:", *(f"  {o}" for o in open_ones[-12:])]
    return "\n".join(lines)
