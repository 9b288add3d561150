"""Producers of one topic, their access mode and fencing epochs.

The topic epoch and the fencing epochs of producer names are persisted in the topic's state before a producer is
admitted under a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from anabranch.broker.close_notifications import CloseNotifications, notify_producer_closed
from anabranch.broker.errors import ProducerFenced, TopicFenced
from anabranch.broker.publish.producer import Producer
from anabranch.broker.publish.producer_access import AccessTable, Admission
from anabranch.broker.publish.sequence_ids import Last
from anabranch.model.errors import Error
from anabranch.protocol import replies
from anabranch.protocol.server_errors import server_error
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner
from anabranch.storage.topic.topic_log import TopicLog

log = get_logger(__name__)

EPOCH_STATE = "topic-epoch"
FENCES_STATE = "fences"
NAMES_MAX = 1_000  # producer names with a fencing epoch; the oldest are dropped, their tasks have ended

NotifyProducer = Callable[[Producer], None]


class Fences:
    """Fencing epoch by producer name: of several producers with one name, the highest epoch wins. Pure.

    Attempts of one Spark task share a name. An abandoned attempt may still run, and reconnect to a broker that was
    restarted or has taken the topic over; therefore the epochs are persisted with the topic.
    """

    def __init__(self, blob: bytes | None = None) -> None:
        self._epochs: dict[str, int] = {} if not blob else {str(k): int(v) for k, v in json.loads(blob).items()}

    def raise_to(self, name: str, epoch: int) -> bool:
        """True if the epoch is new; it must be durable before the producer is admitted. Raises ProducerFenced."""
        known = self._epochs.get(name)
        if known is not None and epoch < known:
            raise ProducerFenced(f"a later attempt of {name!r} has taken over")
        if epoch == known:
            return False
        self._epochs.pop(name, None)  # keep the dict in order of last use
        self._epochs[name] = epoch
        while len(self._epochs) > NAMES_MAX:
            del self._epochs[next(iter(self._epochs))]
        return True

    def dump(self) -> bytes:
        return json.dumps(self._epochs, separators=(",", ":")).encode()


class TopicProducers:
    def __init__(self, topic: str, topic_log: TopicLog, tasks: TaskOwner, last_of: Callable[[str], Last]) -> None:
        """`last_of`: last persisted sequence id and note of a producer name."""
        self.producers: dict[str, Producer] = {}
        self._topic = topic
        self._log = topic_log
        self._tasks = tasks
        self._last_of = last_of
        self._fences = Fences()
        self._access: AccessTable[Producer] = AccessTable()

    def load(self) -> None:
        """After the log was opened."""
        epoch = self._log.state(EPOCH_STATE)
        self._access.epoch = int(epoch) if epoch is not None else 0
        self._fences = Fences(self._log.state(FENCES_STATE))

    @property
    def waiting(self) -> int:
        """Producers that wait for exclusive access."""
        return len(self._access.waiting)

    async def fence(self, producer: Producer) -> None:
        """Persist its fencing epoch: earlier attempts under its name are refused from now on, by any broker. Raises
        ProducerFenced for an earlier attempt. Does nothing without a fencing epoch."""
        if producer.fencing_epoch is not None and self._fences.raise_to(producer.name, producer.fencing_epoch):
            await self._log.save_state(FENCES_STATE, self._fences.dump())

    async def add(self, producer: Producer, known_epoch: int | None) -> Admission[Producer]:
        before = self._access.epoch
        admission = self._access.admit(producer, producer.mode, known_epoch)
        self.producers[producer.name] = producer
        for fenced in admission.fence:
            self._close(fenced, ProducerFenced("another producer has taken the topic over"))
        producer.is_ready = admission.ready
        if self._access.epoch != before:
            await self._save_epoch()
            if producer.closed:  # meanwhile
                if self._access.exclusive is not None:
                    raise ProducerFenced("another producer has taken the topic over")
                raise TopicFenced(f"{self._topic} closed its producers")
        return admission

    async def _save_epoch(self) -> None:
        await self._log.save_state(EPOCH_STATE, str(self._access.epoch).encode())

    def remove(self, producer: Producer) -> None:
        producer.closed = True
        producer.drop_pending()
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        waiting = self._access.leave(producer)
        if waiting is not None:
            waiting.is_ready = True
            self._tasks.spawn(self._promote(waiting), "exclusive producer")

    async def _promote(self, waiting: Producer) -> None:
        try:
            await self._save_epoch()
        except Error as error:
            log.warning("waiting exclusive producer not admitted", extra={"topic": self._topic, "reason": error.reason})
            waiting.is_ready = False
            self._close(waiting, error)
            self.remove(waiting)
            return
        if not waiting.closed:
            credits, last = waiting.grants_credits, self._last_of(waiting.name)
            waiting.peer.send(
                replies.producer_success(
                    waiting.request_id,
                    waiting.name,
                    last_sequence_id=last.sequence,
                    last_note=last.note if credits else b"",
                    schema_version=waiting.schema_version,
                    topic_epoch=self._access.epoch,
                    credit_bytes=waiting.window.bytes_max if credits else None,
                    credit_messages=waiting.window.messages_max if credits else None,
                    ancestors=waiting.ancestors,
                )
            )

    def _close(
        self,
        producer: Producer,
        reason: Error,
        notifications: CloseNotifications | None = None,
        notify: NotifyProducer | None = None,
    ) -> None:
        """A producer that still waits has nothing to close: its request is answered with `reason`."""
        if producer.is_ready and notify is not None:
            notify(producer)
        elif producer.is_ready:
            notify_producer_closed(notifications, producer.peer, producer.producer_id)
        else:
            producer.peer.send(replies.error(producer.request_id, server_error(reason), reason.reason))
        producer.peer.producer_closed(producer.producer_id)
        producer.closed = True
        producer.drop_pending()
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def close_all(
        self, notifications: CloseNotifications | None = None, *, notify: NotifyProducer | None = None
    ) -> None:
        """Close all producers: at once, later by `notifications`, or by `notify` per producer."""
        waiting = [producer for producer in self._access.waiting if producer.name not in self.producers]
        reason = TopicFenced(f"{self._topic} closed its producers")
        for producer in (*self.producers.values(), *waiting):
            self._close(producer, reason, notifications, notify)
        self._access.holders.clear()
        self._access.waiting.clear()
        self._access.exclusive = None


def notify_reason(error: Error, producer: Producer) -> None:
    """Close the producer at its client, and name the reason to a client with our extensions."""
    has_extensions = producer.grants_credits
    code, text = (server_error(error), error.reason) if has_extensions else (None, None)
    producer.peer.send(replies.close_producer(producer.producer_id, code=code, text=text))
