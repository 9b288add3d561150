"""Who may take a place that somebody holds already: nobody, unless the holder is a dead connection or an earlier self.

A connection that broke without a word looks alive for up to two keep-alive intervals, and its own client comes back
long before that. So the holder is asked by PING, with a deadline, and a silent one is closed on the way.

Producers may bring a fencing epoch (attempts of one Spark task do): then the higher one is right and the other is told.
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
    """Returns when the newcomer's name is free; raises ProducerBusy when a living producer has it."""
    while (old := producers.get(newcomer.name)) is not None:  # several may wait for one dead name
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
    """What it has handed to the log already still becomes durable. The newcomer, whose entries may be cut otherwise,
    must not be told of its last sequence id before that."""
    done = asyncio.get_running_loop().create_future()
    old.when_idle(lambda: None if done.done() else done.set_result(None))
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            await done
    except TimeoutError:
        raise NotReady(f"what an earlier attempt of {old.name!r} has sent is not durable yet") from None


def _is_fenced_by(old: Producer, newcomer: Producer) -> bool:
    """Raises ProducerFenced when it is the other way round."""
    if old.fencing_epoch is None or newcomer.fencing_epoch is None:
        return False
    if newcomer.fencing_epoch < old.fencing_epoch:
        raise ProducerFenced(f"a later attempt of {newcomer.name!r} has taken over")
    return newcomer.fencing_epoch > old.fencing_epoch


async def free_exclusive_subscription(
    consumers: Iterable[Consumer], peer: ClientConnection, remove: Callable[[Consumer], None]
) -> None:
    """Returns when none of the consumers is left; raises ConsumerBusy when one of them lives."""
    for old in list(consumers):
        if old.peer is peer or await old.peer.is_alive():
            raise ConsumerBusy("an exclusive consumer is already connected")
        remove(old)
