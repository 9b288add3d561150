"""Requests for segments of one other broker, several in one peer call.

A migration asks the owners of a thousand partitions at once. Requests that are made in one turn of the event loop are
sent together. Each has its own answer or error, and the owner performs them concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.broker.peers import BrokerPeers, PeerCallRefused, PeerCallUnanswered
from anabranch.broker.segment_host.request_codec import read_answer, request_json
from anabranch.controller.segment_host import (
    Adopt,
    Answer,
    Create,
    CreateCursor,
    Delete,
    DeleteCursor,
    Fence,
    FencingToken,
    Release,
    Request,
    Seal,
)
from anabranch.model.errors import Error, NotFound
from anabranch.runtime.tasks import TaskOwner

TOGETHER_MAX = 64  # requests of one peer call
BATCHED = (Adopt, Create, CreateCursor, Delete, DeleteCursor, Fence, Release, Seal)
"""Requests that an operation sends to all segments of a topic. Others are sent alone, so that none waits for another's
answer."""


@dataclass(slots=True)
class _Batch:
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[asyncio.Future[Answer]] = field(default_factory=list)


class RequestBatches:
    def __init__(self, peers: BrokerPeers, call: str, tasks: TaskOwner, *, answer_seconds: float) -> None:
        """`call`: name of the peer call for one request; with `_each` it is the one for several."""
        self._peers, self._call, self._tasks = peers, call, tasks
        self._answer_seconds = answer_seconds
        self._open: dict[str, _Batch] = {}  # by broker; sent before the event loop waits again

    async def ask(self, broker: str, fencing_token: FencingToken, request: Request) -> Answer:
        """Raises PeerCallRefused, PeerNotConnected or PeerCallUnanswered."""
        value = request_json(fencing_token, request)
        if not isinstance(request, BATCHED):
            return read_answer(await self._peers.call(broker, self._call, value))
        batch = self._open.get(broker)
        loop = asyncio.get_running_loop()
        if batch is None or len(batch.requests) >= TOGETHER_MAX:
            batch = self._open[broker] = _Batch()
            loop.call_soon(self._send, broker, batch)
        answer: asyncio.Future[Answer] = loop.create_future()
        batch.requests.append(value)
        batch.answers.append(answer)
        return await answer

    def _send(self, broker: str, batch: _Batch) -> None:
        if self._open.get(broker) is batch:
            del self._open[broker]
        if self._tasks.spawn(self._exchange(broker, batch), f"ask {broker}") is None:
            _fail(batch, PeerCallUnanswered("broker is stopping"))

    async def _exchange(self, broker: str, batch: _Batch) -> None:
        try:
            async with asyncio.timeout(self._answer_seconds):
                answers = await self._answers(broker, batch)
        except TimeoutError:
            _fail(batch, PeerCallUnanswered(f"broker {broker} did not answer in time"))
        except Error as error:
            _fail(batch, error)
        else:
            for waiting, value in zip(batch.answers, answers, strict=True):
                if not waiting.done():
                    _settle(waiting, value)
        finally:
            _fail(batch, PeerCallUnanswered("broker is stopping"))  # unless all are answered

    async def _answers(self, broker: str, batch: _Batch) -> list[Mapping[str, Any]]:
        if len(batch.requests) == 1:
            return [await self._peers.call(broker, self._call, batch.requests[0])]
        try:
            found: list[Mapping[str, Any]] = await self._peers.call(
                broker, f"{self._call}_each", {"requests": batch.requests}
            )
        except PeerCallRefused as refused:
            if refused.code != NotFound.code:
                raise
            # a broker of an earlier release
            return [await self._one(broker, one) for one in batch.requests]
        return found

    async def _one(self, broker: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._peers.call(broker, self._call, request)
        except PeerCallRefused as refused:
            return refusal_json(refused)
        return answer


def refusal_json(error: Error) -> dict[str, str]:
    """An error in place of an answer."""
    return {"error": error.code, "reason": error.reason}


def _settle(waiting: asyncio.Future[Answer], value: Mapping[str, Any]) -> None:
    try:
        if "error" in value:
            waiting.set_exception(PeerCallRefused(str(value["error"]), str(value["reason"]), 409))
        else:
            waiting.set_result(read_answer(value))
    except Error as error:
        waiting.set_exception(error)


def _fail(batch: _Batch, error: Error) -> None:
    for waiting in batch.answers:
        if not waiting.done():
            waiting.set_exception(error)
