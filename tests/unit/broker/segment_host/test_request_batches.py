"""Requests of one turn of the event loop are one peer call; each has its own answer or error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from anabranch.broker.peers import PeerCallRefused, PeerCallUnanswered
from anabranch.broker.segment_host.request_batches import TOGETHER_MAX, RequestBatches
from anabranch.broker.segment_host.request_codec import answer_json, read_request
from anabranch.controller.segment_host import (
    ClearBacklog,
    Done,
    Fence,
    FencingToken,
    Request,
    SegmentMissing,
    SegmentRef,
    Status,
)
from anabranch.model.errors import NotFound
from anabranch.model.names import TopicName
from anabranch.runtime.tasks import TaskOwner

TOKEN = FencingToken(3, 1)


def ref(number: int) -> SegmentRef:
    return SegmentRef(TopicName.parse(f"persistent://public/default/t-partition-{number}"), 7, number)


class Peers:
    """The other broker: fences every segment but those of odd number, which are missing."""

    def __init__(self, *, is_old: bool = False) -> None:
        self.calls: list[tuple[str, int]] = []
        self.is_old = is_old
        self.is_silent = False

    async def call(self, broker: str, name: str, arguments: Mapping[str, Any]) -> Any:
        requests = arguments.get("requests", [arguments])
        self.calls.append((name, len(requests)))
        if self.is_silent:
            raise PeerCallUnanswered("away")
        if name != "ask_each":
            return self._one(arguments)
        if self.is_old:
            raise PeerCallRefused(NotFound.code, "no peer call", 404)
        return [self._safe(one) for one in requests]

    def _safe(self, value: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._one(value)
        except PeerCallRefused as refused:
            return {"error": refused.code, "reason": refused.reason}

    def _one(self, value: Mapping[str, Any]) -> dict[str, Any]:
        _, request = read_request(value)
        if request.segment.segment_id % 2:
            raise PeerCallRefused(SegmentMissing.code, f"{request.segment} is missing", 404)
        return answer_json(Status(True) if isinstance(request, Fence) else Done())


async def ask(peers: Peers, *requests: Request) -> list[Any]:
    tasks = TaskOwner("test")
    batches = RequestBatches(peers, "ask", tasks, answer_seconds=10.0)  # type: ignore[arg-type]  # `call` alone
    answers = await asyncio.gather(*(batches.ask("b2", TOKEN, one) for one in requests), return_exceptions=True)
    await tasks.close()
    return answers


@pytest.mark.parametrize("is_old", [False, True])
async def test_each_request_has_its_own_answer_or_error(is_old: bool) -> None:
    peers = Peers(is_old=is_old)
    answers = await ask(peers, *(Fence("op", ref(number)) for number in range(4)))
    assert [answers[0], answers[2]] == [Status(True)] * 2
    assert [one.reason for one in (answers[1], answers[3])] == ["segment 1 is missing", "segment 3 is missing"]
    assert {one.code for one in (answers[1], answers[3])} == {SegmentMissing.code}
    single = [("ask", 1)] * 4 if is_old else []
    assert peers.calls == [("ask_each", 4), *single], "a broker of an earlier release gets them one by one"


async def test_batches_are_bounded_and_one_request_is_sent_alone() -> None:
    peers = Peers()
    await ask(peers, *(Fence("op", ref(0)) for _ in range(TOGETHER_MAX + 1)))
    assert peers.calls == [("ask_each", TOGETHER_MAX), ("ask", 1)]


async def test_requests_of_a_single_subscription_do_not_wait_for_others() -> None:
    peers = Peers()
    await ask(peers, *(ClearBacklog("op", ref(0), "s") for _ in range(3)))
    assert peers.calls == [("ask", 1)] * 3


async def test_unanswered_call_fails_all_of_its_requests() -> None:
    peers = Peers()
    peers.is_silent = True
    answers = await ask(peers, Fence("op", ref(0)), Fence("op", ref(2)))
    assert [type(one) for one in answers] == [PeerCallUnanswered] * 2
