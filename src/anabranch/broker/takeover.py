"""Who may take a place that somebody holds already: nobody, unless the holder is a dead connection or an earlier self.

A connection that broke without a word looks alive for up to two keep-alive intervals, and its own client comes back
long before that. So the holder is asked by PING, with a deadline, and a silent one is closed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from anabranch.broker.consumer import Consumer
from anabranch.broker.errors import ConsumerBusy, ProducerBusy
from anabranch.broker.peer import Peer
from anabranch.broker.producer import Producer


async def settle_name(
    producers: Mapping[str, Producer], newcomer: Producer, remove: Callable[[Producer], None]
) -> None:
    """Returns when the newcomer's name is free; raises ProducerBusy when a living producer has it."""
    while (old := producers.get(newcomer.name)) is not None:  # several may wait for one dead name
        same = old.peer is newcomer.peer and old.producer_id == newcomer.producer_id
        if same and old.epoch < newcomer.epoch:
            remove(old)
        elif old.peer is newcomer.peer or await old.peer.is_alive():
            raise ProducerBusy(f"a producer named {newcomer.name!r} is already connected")
        elif producers.get(newcomer.name) is old:
            remove(old)


async def settle_exclusive(consumers: Iterable[Consumer], peer: Peer, remove: Callable[[Consumer], None]) -> None:
    """Returns when none of the consumers is left; raises ConsumerBusy when one of them lives."""
    for old in list(consumers):
        if old.peer is peer or await old.peer.is_alive():
            raise ConsumerBusy("an exclusive consumer is already connected")
        remove(old)
