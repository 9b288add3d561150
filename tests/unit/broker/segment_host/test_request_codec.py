"""The port to segment owners as JSON: requests, answers and events are decoded as they were encoded."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.segment_host import request_codec as codec
from anabranch.controller import segment_host as host
from anabranch.model.errors import BadRequest
from anabranch.model.names import TopicName
from anabranch.model.position import Position

numbers = st.integers(0, 1 << 50)
texts = st.text(max_size=12)
refs = st.builds(
    lambda local, incarnation, number: host.SegmentRef(
        TopicName.from_parts("segment", "public", "default", f"{local}/0000-ffff-{number}"), incarnation, number
    ),
    st.sampled_from(["orders", "a b", "ü/x"]),
    numbers,
    st.integers(0, 1000),
)
specs = st.builds(host.CursorSpec, texts, st.sampled_from(host.Start))
positions = st.builds(Position, st.integers(-1, 1 << 50), st.integers(-1, 1 << 50))
seals = st.builds(host.SealFacts, positions, numbers, texts, st.lists(st.tuples(texts, numbers), max_size=3).map(tuple))
mandates = st.builds(host.FencingToken, numbers, numbers)
rates = st.builds(host.Rates, *[st.floats(0, 1e9)] * 4)

BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "operation": texts,
    "segment": refs,
    "cursors": st.lists(specs, max_size=3).map(tuple),
    "children": st.lists(refs, max_size=3).map(tuple),
    "cursor": specs,
    "subscription": texts,
    "consumer": texts,
    "reader": texts,
    "reason": texts,
    "publish_ms": numbers,
    "position": st.none() | positions,
    "after": st.none() | positions,
    "unread": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3).map(tuple),
    "generation": numbers,
    "force": st.booleans(),
    "clients": st.lists(st.builds(host.OldClient, texts, texts, texts, texts, texts), max_size=3).map(tuple),
    "subscriptions": st.lists(st.tuples(texts, st.booleans()), max_size=3).map(tuple),
    "rewind_count": numbers,
    "is_shared": st.booleans(),
    "start": st.sampled_from(host.Start),
}


def any_of(union: Any) -> st.SearchStrategy[Any]:
    return st.one_of(*(st.builds(one, **{f.name: BY_FIELD[f.name] for f in fields(one)}) for one in get_args(union)))


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(mandates, any_of(host.Request))
def test_requests(fencing_token: host.FencingToken, request: host.Request) -> None:
    assert codec.read_request(through_json(codec.request_json(fencing_token, request))) == (fencing_token, request)


statuses = st.builds(
    host.Status,
    st.booleans(),
    st.none() | seals,
    st.frozensets(texts, max_size=3),
    st.frozensets(st.tuples(texts, numbers), max_size=3),
)


@given(st.just(host.Done()) | seals | statuses)
def test_answers(answer: host.Answer) -> None:
    assert codec.read_answer(through_json(codec.answer_json(answer))) == answer


@given(any_of(host.SubscriptionEvent))
def test_events(event: host.SubscriptionEvent) -> None:
    assert codec.read_event(through_json(codec.event_json(event))) == event


@given(
    st.builds(
        host.SegmentStats,
        rates,
        rates,
        numbers,
        numbers,
        numbers,
        st.dictionaries(texts, st.builds(host.CursorStats, numbers, numbers, st.none() | positions), max_size=3),
    )
)
def test_stats(stats: host.SegmentStats) -> None:
    assert codec.read_stats(through_json(codec.stats_json(stats))) == stats


@pytest.mark.parametrize("value", [{}, {"kind": "Nonsense", "mandate": [1, 2], "operation": "", "segment": ["x"]}])
def test_unknown_values_are_refused(value: dict[str, Any]) -> None:
    for read in (codec.read_request, codec.read_answer, codec.read_event, codec.read_stats):
        with pytest.raises(BadRequest):
            read(value)


def test_errors_of_the_port_keep_their_class() -> None:
    port = [one for one in vars(host).values() if isinstance(one, type) and issubclass(one, host.HostError)]
    missing = {one for one in port if one is not host.HostError} - set(codec.ERRORS.values())
    assert missing == set()
    assert {host.SegmentMissing, host.CursorMissing} <= set(codec.ERRORS.values())
