"""The publish path of one persistent topic: window, deduplication, append, receipt. Runs on the loop, never awaits.

Order is the law here: entries of one producer are appended in the order of their SENDs, and answered in that order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from anabranch.broker.dedup import Sequences, Verdict
from anabranch.broker.latency import Latencies
from anabranch.broker.producer import Deferred, Producer, Publish
from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.protocol.server_errors import ServerError
from anabranch.storage.port import StorageError
from anabranch.storage.topiclog import TopicLog

log = logging.getLogger(__name__)

NEVER = (1 << 62, 0.0)  # a sample that is never settled: nothing is measured
_PRODUCER_OF: Callable[[Publish], Producer] = attrgetter("producer")


class Publisher:
    """`persisted`/`persist_failed` make it the log's sink. `on_persisted` is told per group, `on_failed` per loss."""

    def __init__(
        self,
        topic_log: TopicLog,
        sequences: Sequences | None,
        *,
        snapshot_entries: int,
        on_persisted: Callable[[], None],
        on_failed: Callable[[Error], None],
        now: Callable[[], float] | None = None,
    ) -> None:
        """`now` (seconds) lets it measure: one publish at a time, so that measuring costs next to nothing."""
        self._log = topic_log
        self._on_persisted = on_persisted
        self._on_failed = on_failed
        self._snapshot_entries = snapshot_entries
        self._since_snapshot = 0
        # Copies of what is in flight: (appends before it, publish, its turn among the receipts).
        self._echoes: deque[tuple[int, Publish, Deferred]] = deque()
        self._appended = 0
        self._settled = 0
        self._now = now
        self._sample: tuple[int, float] | None = None if now is not None else NEVER  # the append, when it was made
        self.latencies = Latencies()
        self.sequences = sequences
        self.messages_in = 0
        self.bytes_in = 0

    def publish(self, publish: Publish) -> None:
        """Take one SEND; its bytes count against the connection from now until it is answered."""
        producer, window = publish.producer, publish.producer.window
        producer.peer.held(publish.size)
        # What `window.is_open` says, without the call.
        if producer.held or window.bytes >= window.bytes_max or window.messages >= window.messages_max:
            producer.held.append(publish)
        else:
            self._submit(publish)

    def _submit(self, publish: Publish) -> None:
        producer = publish.producer
        if self._log.is_terminated:
            producer.refuse(publish, ServerError.TopicTerminatedError, "topic is terminated")
            return
        if self.sequences is not None and not self._is_new(publish, self.sequences):
            return
        producer.submitted(publish)
        try:
            self._log.append(publish.payload, publish.messages, self, publish)
        except StorageError as error:
            producer.failed(publish)
            self._lost(publish, error)
            return
        self._appended += 1
        if self._sample is None and self._now is not None:
            self._sample = (self._appended, self._now())

    def _is_new(self, publish: Publish, sequences: Sequences) -> bool:
        """Not known by its sequence id; a copy is taken care of here."""
        producer = publish.producer
        verdict = sequences.judge(producer.name, publish.last_sequence)
        if verdict is Verdict.DUPLICATE:
            producer.duplicate(publish)
            return False
        if verdict is Verdict.IN_FLIGHT:
            self._echoes.append((self._appended, publish, producer.echo(publish)))
            return False
        if publish.is_last_chunk:
            sequences.push(producer.name, publish.last_sequence)
        return True

    # -- the log answers, in append order

    def persisted(self, ledger: int, entry: int, contexts: Sequence[Publish]) -> None:
        if self._echoes:  # they have their turn between the receipts
            for number, publish in enumerate(contexts, entry):
                self._settle(ledger, number, (publish,))
                self._answer_echoes()
        else:
            self._settle(ledger, entry, contexts)
        sample = self._sample
        if sample is not None and sample[0] <= self._settled and self._now is not None:
            self.latencies.record(self._now() - sample[1])
            self._sample = None
        self._on_persisted()

    def _settle(self, ledger: int, entry: int, publishes: Sequence[Publish]) -> None:
        self._settled += len(publishes)
        if self.sequences is not None:
            self._note_sequences(self.sequences, publishes, Position(ledger, entry + len(publishes) - 1))
        for producer, run in groupby(publishes, _PRODUCER_OF):
            own = list(run)
            size, messages = producer.completed(own, ledger, entry)
            entry += len(own)
            self.bytes_in += size
            self.messages_in += messages
            if producer.held:
                self._release(producer)

    def _note_sequences(self, sequences: Sequences, publishes: Sequence[Publish], last: Position) -> None:
        for publish in publishes:
            if publish.is_last_chunk:
                sequences.persist(publish.producer.name, publish.last_sequence)
        self._since_snapshot += len(publishes)
        if self._since_snapshot >= self._snapshot_entries:
            self._since_snapshot = 0
            self._log.save_state_nowait("dedup", sequences.dump(last))

    def _release(self, producer: Producer) -> None:
        held = producer.held
        while held and producer.window.is_open and not producer.closed:
            self._submit(held.popleft())

    def _answer_echoes(self) -> None:
        echoes = self._echoes
        while echoes and echoes[0][0] <= self._settled:
            _, publish, echo = echoes.popleft()
            sequences, producer = self.sequences, publish.producer
            # Deduplication may have been switched off meanwhile; the first copy is settled all the same.
            is_there = sequences is None or sequences.judge(producer.name, publish.last_sequence) is Verdict.DUPLICATE
            producer.echo_settled(echo, publish, is_duplicate=is_there)

    def persist_failed(self, error: StorageError, context: Publish) -> None:
        self._settled += 1
        if self._sample is not None and self._sample[0] <= self._settled:
            self._sample = None if self._now is not None else NEVER
        context.producer.failed(context)
        self._lost(context, error)
        if self._echoes:
            self._answer_echoes()

    def _lost(self, publish: Publish, error: StorageError) -> None:
        if self.sequences is not None:
            self.sequences.forget_pushed(publish.producer.name)
        self._on_failed(error)

    def snapshot(self) -> None:
        """Before a clean close, so that opening reads nothing back."""
        if self.sequences is not None and self.sequences.persisted:
            self._log.save_state_nowait("dedup", self.sequences.dump(self._log.last_position))
