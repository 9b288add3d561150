"""The checker accepts every history of a correct register and rejects histories that no register has."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.metadata.interface import ABSENT, ANY, Expected
from tests.support.faults.linearizability import Answer, Found, Kind, Operation, Register, Wrote, explain, outcomes


def op(
    kind: Kind,
    called: float,
    returned: float,
    answer: Found | Wrote | Answer,
    value: bytes = b"",
    expected: Expected = ANY,
) -> Operation:
    return Operation("c", "/k", kind, called, returned, answer, value, expected)


def put(at: float, value: bytes, version: int, *, expected: Expected = ANY, until: float | None = None) -> Operation:
    return op(Kind.PUT, at, at + 0.5 if until is None else until, Wrote(version), value, expected)


def get(at: float, answer: Found | Answer, *, until: float | None = None) -> Operation:
    return op(Kind.GET, at, at + 0.5 if until is None else until, answer)


def unknown(at: float, value: bytes, expected: Expected = ANY) -> Operation:
    return op(Kind.PUT, at, at + 0.5, Answer.UNKNOWN, value, expected)


BAD: dict[str, list[Operation]] = {
    "stale read": [put(0, b"a", 1), put(1, b"b", 2, expected=1), get(2, Found(b"a", 1))],
    "read goes back": [
        put(0, b"a", 1),
        put(1, b"b", 2, until=9),
        get(2, Found(b"b", 2)),
        get(3, Found(b"a", 1)),
    ],
    "absent after a write": [put(0, b"a", 1), get(1, Answer.NOTHING)],
    "value never written": [put(0, b"a", 1), get(1, Found(b"x", 1))],
    "wrong version of the value": [put(0, b"a", 1), get(1, Found(b"a", 5))],
    "value from the future": [get(0, Found(b"a", 1)), put(1, b"a", 1)],
    "lost update": [put(0, b"a", 1), put(1, b"b", 2), put(2, b"c", 3, expected=1)],
    "two successes of one compare": [
        put(0, b"a", 1),
        put(1, b"b", 2, expected=1, until=5),
        put(1, b"c", 3, expected=1, until=5),
    ],
    "two creators": [put(0, b"a", 1, expected=ABSENT, until=5), put(0, b"b", 2, expected=ABSENT, until=5)],
    "refused though it matches": [
        put(0, b"a", 1),
        op(Kind.PUT, 1, 2, Answer.REFUSED, b"b", 1),
    ],
    "creator refused by nothing": [op(Kind.PUT, 0, 1, Answer.REFUSED, b"a", ABSENT)],
    "same version twice": [put(0, b"a", 1), put(1, b"b", 1)],
    "delete undone": [put(0, b"a", 1), op(Kind.DELETE, 1, 2, Wrote(None)), get(3, Found(b"a", 1))],
    "deleted twice": [
        put(0, b"a", 1),
        op(Kind.DELETE, 1, 5, Wrote(None)),
        op(Kind.DELETE, 1, 5, Wrote(None)),
    ],
    "missing though there": [put(0, b"a", 1), op(Kind.DELETE, 1, 2, Answer.NOTHING)],
    "unknown write seen before it was called": [get(0, Found(b"a", 1)), unknown(1, b"a")],
    "unknown write applied twice": [
        put(0, b"a", 1),
        unknown(1, b"u"),
        get(2, Found(b"u", 2)),
        put(3, b"b", 3),
        get(4, Found(b"u", 4)),
    ],
    "unknown compare applied though beaten": [
        put(0, b"a", 1),
        unknown(1, b"u", 1),
        put(2, b"b", 2, expected=1),
        get(3, Found(b"u", 3)),
    ],
}

GOOD: dict[str, list[Operation]] = {
    "nothing": [],
    "overlapping reads see either": [
        put(0, b"a", 1),
        put(1, b"b", 2, until=9),
        get(2, Found(b"a", 1)),
        get(3, Found(b"b", 2)),
    ],
    "unknown write never happened": [put(0, b"a", 1), unknown(1, b"u"), get(2, Found(b"a", 1))],
    "unknown write happened much later": [
        put(0, b"a", 1),
        unknown(1, b"u"),
        get(2, Found(b"a", 1)),
        put(3, b"b", 2, expected=1),
        get(4, Found(b"u", 3)),
    ],
    "unknown write explains a refusal": [
        put(0, b"a", 1),
        unknown(1, b"u"),
        op(Kind.PUT, 2, 3, Answer.REFUSED, b"b", 1),
    ],
    "unknown delete explains absence": [
        put(0, b"a", 1),
        op(Kind.DELETE, 1, 2, Answer.UNKNOWN),
        get(3, Answer.NOTHING),
    ],
    "version bound by a read": [unknown(0, b"u"), get(1, Found(b"u", 7)), put(2, b"b", 8, expected=7)],
    "numbers start again after a delete": [
        put(0, b"a", 0),
        op(Kind.DELETE, 1, 2, Wrote(None), expected=0),
        put(3, b"b", 0, expected=ABSENT),
        put(4, b"c", 1, expected=0),
    ],
}


@pytest.mark.parametrize("name", BAD)
def test_rejects(name: str) -> None:
    assert explain(BAD[name]) is not None
    # Operations of another key neither help nor hide it.
    other = [replace(operation, key="/other") for operation in GOOD["version bound by a read"]]
    assert explain([*other, *BAD[name]]) is not None


@pytest.mark.parametrize("name", GOOD)
def test_accepts(name: str) -> None:
    assert explain(GOOD[name]) is None


def simulate(seed: int, clients: int, operations: int, unknown_share: float) -> list[Operation]:
    """A history of a correct register: each operation takes effect at a random moment inside its span."""
    chance = random.Random(seed)
    moments = []
    for person in range(clients):
        now = chance.random()
        for _ in range(operations):
            called = now
            now += chance.random() * 3
            effect = called + chance.random() * (now - called)
            lost = chance.random() < unknown_share
            if lost:
                effect = called + chance.expovariate(0.2)
            moments.append((effect, called, now, f"c{person}", lost))
            now += chance.random() * 0.2
    state: Register = None
    seen: dict[str, Found] = {}
    version = 0
    history = []
    for number, (_, called, returned, client, lost) in enumerate(sorted(moments)):
        kind = chance.choice([Kind.GET, Kind.PUT, Kind.PUT, Kind.DELETE])
        # The version last seen counts from the call on: what others do before the effect makes it stale.
        mine = seen.get(client)
        expected: Expected = ANY
        if kind is not Kind.GET and chance.random() < 0.7:
            expected = mine.version if mine is not None and mine.version is not None else ABSENT
        if kind is Kind.DELETE and expected is ABSENT:
            expected = ANY
        if lost and chance.random() < 0.4:
            if kind is not Kind.GET:
                history.append(
                    Operation(client, "/k", kind, called, returned, Answer.UNKNOWN, b"v%d" % number, expected)
                )
            continue
        answer, state = apply(kind, b"v%d" % number, expected, state, version + 1)
        if isinstance(answer, Wrote) and kind is Kind.PUT:
            version += 1
        if isinstance(state, Found) and not lost:
            seen[client] = state
        if lost and kind is Kind.GET:
            continue
        history.append(
            Operation(
                client,
                "/k",
                kind,
                called,
                returned,
                Answer.UNKNOWN if lost else answer,
                b"v%d" % number,
                expected,
            )
        )
    return history


def apply(
    kind: Kind, value: bytes, expected: Expected, state: Register, version: int
) -> tuple[Found | Wrote | Answer, Register]:
    """A simple register."""
    current = None if state is None else state.version
    if kind is Kind.GET:
        return (Answer.NOTHING if state is None else state), state
    if kind is Kind.DELETE and state is None:
        return Answer.NOTHING, state
    if expected is not ANY and (current is not None if expected is ABSENT else current != expected):
        return Answer.REFUSED, state
    return (Wrote(None), None) if kind is Kind.DELETE else (Wrote(version), Found(value, version))


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 25), st.sampled_from([0.0, 0.1, 0.3]))
@settings(max_examples=150, deadline=None)
def test_accepts_every_history_of_a_correct_register(seed: int, clients: int, count: int, share: float) -> None:
    assert explain(simulate(seed, clients, count, share)) is None


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_agrees_with_trying_every_order(seed: int, clients: int, count: int) -> None:
    """Answers are shuffled, so that many histories are wrong; a brute-force search tries all orders."""
    chance = random.Random(seed)
    history = simulate(seed, clients, min(count, 6 // clients), 0.2)
    answers = [operation.answer for operation in history]
    if len(history) > 1 and chance.random() < 0.8:
        one, two = chance.sample(range(len(history)), 2)
        if history[one].kind is history[two].kind:
            answers[one], answers[two] = answers[two], answers[one]
    mixed = [replace(operation, answer=answer) for operation, answer in zip(history, answers, strict=True)]
    assert (explain(mixed) is None) == is_linearizable_slowly(mixed)


def is_linearizable_slowly(history: list[Operation]) -> bool:
    optional = [operation for operation in history if operation.is_optional]
    certain = [operation for operation in history if not operation.is_optional]
    for chosen in range(1 << len(optional)):
        some = certain + [operation for place, operation in enumerate(optional) if chosen >> place & 1]
        if any(fits(order) for order in permutations(some)):
            return True
    return False


def fits(order: tuple[Operation, ...]) -> bool:
    latest = 0.0
    state: Register = None
    for operation in order:
        if operation.end < latest:
            return False
        latest = max(latest, operation.called)
        after = list(outcomes(operation, state))
        if not after:
            return False
        state = after[0]
    return True


def test_long_histories_with_many_unknown_outcomes_are_quick() -> None:
    history = simulate(7, 6, 200, 0.05)
    assert len(history) > 1000
    assert explain(history) is None


def test_explanation_names_the_wrong_operation() -> None:
    text = explain(BAD["stale read"])
    assert text is not None
    assert "/k is not linearizable" in text
    assert "at best 2 of 3" in text
    assert "c: get /k -> Found(value=b'a', version=1)" in text
