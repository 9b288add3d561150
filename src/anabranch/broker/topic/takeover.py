"""A producer name or exclusive subscription in use can be taken over only if its connection no longer answers PING, or
if the new request is a later attempt of the same producer.

A broken connection looks alive for up to two keep-alive intervals, and its client reconnects long before that.
Therefore the old connection is asked by PING, with a deadline, and closed if it is silent.

Producers may have a fencing epoch (attempts of one Spark task do). The higher epoch wins, and the other is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from anabranch.broker.client_connection import ClientConnection
from anabranch.broker.errors import ConsumerBusy, ProducerBusy, ProducerFenced
from anabranch.broker.publish.producer import Producer
from anabranch.broker.subscription.consumer import Consumer
from anabranch.model.errors import NotReady
from anabranch.protocol import replies

IDLE_SECONDS = 30.0


async def free_producer_name(
    producers: Mapping[str, Producer], newcomer: Producer, remove: Callable[[Producer], None]
) -> None:
    """Returns when the newcomer's name is free. Raises ProducerBusy if a connected producer has it."""
    while (old := producers.get(newcomer.name)) is not None:  # several requests may wait for one name
        if _is_fenced_by(old, newcomer):
            old.peer.send(replies.close_producer(old.producer_id))
            old.peer.producer_closed(old.producer_id)
            remove(old)
            await _wait_idle(old)
            continue
        same = old.peer is newcomer.peer and old.producer_id == newcomer.producer_id
        if same and old.epoch < newcomer.epoch:
            remove(old)
        elif old.peer is newcomer.peer or await old.peer.is_alive():
            raise ProducerBusy(f"a producer named {newcomer.name!r} is already connected")
        elif producers.get(newcomer.name) is old:
            remove(old)


async def _wait_idle(old: Producer) -> None:
    """Wait until the old producer's appends are completed. The newcomer must not learn the last sequence id before,
    because it may group its messages into entries differently."""
    done = asyncio.get_running_loop().create_future()
    old.when_idle(lambda: None if done.done() else done.set_result(None))
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            await done
    except TimeoutError:
        raise NotReady(f"entries of an earlier attempt of {old.name!r} are not durable yet") from None


def _is_fenced_by(old: Producer, newcomer: Producer) -> bool:
    """Whether `newcomer` fences `old`. Raises ProducerFenced if `old` fences `newcomer`."""
    if old.fencing_epoch is None or newcomer.fencing_epoch is None:
        return False
    if newcomer.fencing_epoch < old.fencing_epoch:
        raise ProducerFenced(f"a later attempt of {newcomer.name!r} has taken over")
    return newcomer.fencing_epoch > old.fencing_epoch


async def free_exclusive_subscription(
    consumers: Iterable[Consumer], peer: ClientConnection, remove: Callable[[Consumer], None]
) -> None:
    """Returns when all consumers are removed. Raises ConsumerBusy if one of them is connected."""
    for old in list(consumers):
        if old.peer is peer or await old.peer.is_alive():
            raise ConsumerBusy("an exclusive consumer is already connected")
        remove(old)
