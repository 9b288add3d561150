"""Producers that share a name: a later attempt waits until the appends of the earlier one are completed."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.errors import ProducerFenced
from anabranch.broker.publish.producer import Producer, Publish, Window
from anabranch.broker.publish.producer_access import AccessMode
from anabranch.broker.topic import takeover
from anabranch.broker.topic.takeover import free_producer_name
from anabranch.model.errors import NotReady
from tests.support.in_memory.broker_fakes import RecordingPeer


def attempt(epoch: int | None, number: int) -> Producer:
    return Producer(
        RecordingPeer(),
        producer_id=number,
        request_id=1,
        name="task",
        partition=-1,
        epoch=0,
        mode=AccessMode.SHARED,
        metadata={},
        window=Window(1 << 20, 1_000),
        grants_credits=False,
        connected_ms=0,
        fencing_epoch=epoch,
    )


class Place:
    """Who produces under which name."""

    def __init__(self, holder: Producer) -> None:
        self.producers = {holder.name: holder}

    def remove(self, one: Producer) -> None:
        one.closed = True
        self.producers.pop(one.name, None)


async def test_later_attempt_waits_for_entries_in_flight() -> None:
    old, heir = attempt(1, 1), attempt(2, 2)
    place = Place(old)
    sent = Publish(old, 7, 0, 7, 1, b"entry", True)
    old.submitted(sent.size, 1)
    settling = asyncio.ensure_future(free_producer_name(place.producers, heir, place.remove))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not place.producers, "nothing more is taken from it"
    assert not settling.done(), "its last entry may still become durable"
    old.completed([sent], 1, 0)
    await asyncio.wait_for(settling, 10)


async def test_one_that_closes_meanwhile_is_answered_all_the_same() -> None:
    old, heir = attempt(1, 1), attempt(2, 2)
    place = Place(old)
    sent = Publish(old, 7, 0, 7, 1, b"entry", True)
    old.submitted(sent.size, 1)
    closed: list[str] = []
    old.when_idle(lambda: closed.append("idle"))
    settling = asyncio.ensure_future(free_producer_name(place.producers, heir, place.remove))
    await asyncio.sleep(0)
    old.completed([sent], 1, 0)
    await asyncio.wait_for(settling, 10)
    assert closed == ["idle"]


async def test_takeover_stops_waiting_after_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "IDLE_SECONDS", 0.01)
    old, heir = attempt(1, 1), attempt(2, 2)
    old.submitted(5, 1)
    place = Place(old)
    with pytest.raises(NotReady, match="are not durable yet"):
        await free_producer_name(place.producers, heir, place.remove)


async def test_an_earlier_attempt_is_refused() -> None:
    place = Place(attempt(2, 1))
    with pytest.raises(ProducerFenced):
        await free_producer_name(place.producers, attempt(1, 2), place.remove)
