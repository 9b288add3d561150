"""The publish path of one persistent topic: window, deduplication, append, receipt. Runs on the loop, never awaits.

Entries of one producer are appended in the order of their SENDs, and answered in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

from anabranch.broker.publish.latency_histogram import Latencies
from anabranch.broker.publish.producer import Deferred, Producer, Publish
from anabranch.broker.publish.publish_rate_limiter import PublishRateLimiter
from anabranch.broker.publish.sequence_ids import STATE, DedupDecision, Sequences
from anabranch.model.errors import Error
from anabranch.model.position import Position
from anabranch.protocol.entry import metadata as entry_metadata
from anabranch.protocol.errors import BadEntry
from anabranch.protocol.server_errors import ServerError
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import Payload, StorageError
from anabranch.storage.topic.topic_log import TopicLog

log = get_logger(__name__)

NEVER = (1 << 62, 0.0)  # a sample that is never completed: latency is not measured
_PRODUCER_OF: Callable[[Publish], Producer] = itemgetter(0)


class Publisher:
    """The log's sink (`persisted`, `persist_failed`). `on_persisted` is called per group, `on_failed` per failure."""

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
        """`now` (seconds) enables latency sampling: one publish at a time, so that it costs next to nothing."""
        self._log = topic_log
        self._on_persisted = on_persisted
        self._on_failed = on_failed
        self._snapshot_entries = snapshot_entries
        self._since_snapshot = 0
        # Copies of entries in flight: (appends before it, publish, its deferred receipt).
        self._in_flight_duplicates: deque[tuple[int, Publish, Deferred]] = deque()
        self._appended = 0
        self._completed = 0
        self._now = now
        self._sample: tuple[int, float] | None = None if now is not None else NEVER  # number of the append, its time
        self.latencies = Latencies()
        self.sequences = sequences
        self.rate_limiter: PublishRateLimiter | None = (
            None  # set while a rate applies: entries arrive by `publish_limited`
        )
        self.is_paused = False  # SENDs wait in their producer's `pending`
        self._counted_to: Position | None = None  # entries up to here are counted in `sequences`
        self.messages_in = 0
        self.bytes_in = 0

    def publish(self, publish: Publish) -> None:
        self.publish_run(publish.producer, (publish,))

    def publish_run(self, producer: Producer, publishes: Sequence[Publish]) -> None:
        """Submit SENDs of one producer. Their bytes count against the connection until they are answered."""
        size = messages = 0
        payloads: list[Payload] = []
        counts: list[int] = []
        for _, _, _, _, count, payload, _ in publishes:
            size += len(payload)
            messages += count
            payloads.append(payload)
            counts.append(count)
        producer.peer.add_pending_bytes(size)
        window = producer.window
        is_plain = (
            not producer.pending
            and not self.is_paused
            and window.bytes + size < window.bytes_max
            and window.messages + messages < window.messages_max
            and not self._log.is_terminated
            and (self.sequences is None or _pushed_whole(self.sequences, producer.name, publishes))
        )
        if not is_plain:
            for publish in publishes:
                self._take(publish)
            return
        producer.submitted(size, messages, len(publishes))
        try:
            self._log.append_run(payloads, counts, self, publishes)
        except StorageError as error:
            for publish in publishes:
                producer.failed(publish)
                self._lost(publish, error)
            return
        self._appended += len(publishes)
        if self._sample is None and self._now is not None:
            self._sample = (self._appended, self._now())

    def _take(self, publish: Publish) -> None:
        """Submit one publish, or queue it until the window opens."""
        producer = publish.producer
        if producer.pending or self.is_paused or not producer.window.is_open:
            producer.pending.append(publish)
        else:
            self._submit(publish, len(publish.payload))

    def publish_limited(self, publish: Publish) -> None:
        """`publish` under a rate limit."""
        publish.producer.peer.add_pending_bytes(publish.size)
        publish.producer.pending.append(publish)
        self.release(publish.producer)

    def _submit(self, publish: Publish, size: int) -> None:
        producer, messages, payload = publish.producer, publish.messages, publish.payload
        if self._log.is_terminated:
            producer.refuse(publish, ServerError.TopicTerminatedError, "topic is terminated")
            return
        if self.sequences is not None and not self._is_new(publish, self.sequences):
            return
        producer.submitted(size, messages)
        try:
            self._log.append(payload, messages, self, publish)
        except StorageError as error:
            producer.failed(publish)
            self._lost(publish, error)
            return
        self._appended += 1
        if self._sample is None and self._now is not None:
            self._sample = (self._appended, self._now())

    def _is_new(self, publish: Publish, sequences: Sequences) -> bool:
        """Whether the sequence id is new; a duplicate is answered here."""
        producer = publish.producer
        decision = sequences.check(producer.name, publish.last_sequence)
        if decision is DedupDecision.DUPLICATE:
            producer.duplicate(publish)
            return False
        if decision is DedupDecision.IN_FLIGHT:
            self._in_flight_duplicates.append((self._appended, publish, producer.in_flight_duplicate(publish)))
            return False
        if publish.is_last_chunk:
            sequences.push(producer.name, publish.last_sequence)
        return True

    # -- the log answers, in append order

    def persisted(self, ledger: int, entry: int, contexts: Sequence[Publish]) -> None:
        if self._in_flight_duplicates:  # their receipts go between the others
            for number, publish in enumerate(contexts, entry):
                self._complete(ledger, number, (publish,))
                self._answer_in_flight_duplicates()
        else:
            self._complete(ledger, entry, contexts)
        sample = self._sample
        if sample is not None and sample[0] <= self._completed and self._now is not None:
            self.latencies.record(self._now() - sample[1])
            self._sample = None
        self._on_persisted()

    def _complete(self, ledger: int, entry: int, publishes: Sequence[Publish]) -> None:
        self._completed += len(publishes)
        sequences, last = self.sequences, Position(ledger, entry + len(publishes) - 1)
        for producer, run in groupby(publishes, _PRODUCER_OF):
            own = list(run)
            if sequences is not None:
                _persist_run(sequences, producer, own)
            size, messages = producer.completed(own, ledger, entry)
            entry += len(own)
            self.bytes_in += size
            self.messages_in += messages
            if producer.pending:
                self.release(producer)
        if sequences is not None:
            self._count_persisted(sequences, len(publishes), last)

    def _count_persisted(self, sequences: Sequences, count: int, last: Position) -> None:
        self._counted_to = last
        self._since_snapshot += count
        if self._since_snapshot >= self._snapshot_entries:
            self._since_snapshot = 0
            self._log.save_state_nowait(STATE, sequences.dump(last))

    def release(self, producer: Producer) -> None:
        """Submit pending SENDs of the producer, as far as its window and the topic's rate allow."""
        pending, limiter = producer.pending, self.rate_limiter
        if self.is_paused:
            return
        while (
            pending
            and producer.window.is_open
            and not producer.closed
            and (limiter is None or limiter.admits(pending[0]))
        ):
            publish = pending.popleft()
            self._submit(publish, len(publish.payload))

    def _answer_in_flight_duplicates(self) -> None:
        duplicates = self._in_flight_duplicates
        while duplicates and duplicates[0][0] <= self._completed:
            _, publish, deferred = duplicates.popleft()
            sequences, producer = self.sequences, publish.producer
            # Deduplication may have been switched off meanwhile; the first copy is completed all the same.
            is_there = (
                sequences is None or sequences.check(producer.name, publish.last_sequence) is DedupDecision.DUPLICATE
            )
            producer.in_flight_duplicate_done(deferred, publish, is_duplicate=is_there)

    def persist_failed(self, error: StorageError, context: Publish) -> None:
        self._completed += 1
        if self._sample is not None and self._sample[0] <= self._completed:
            self._sample = None if self._now is not None else NEVER
        context.producer.failed(context)
        self._lost(context, error)
        if self._in_flight_duplicates:
            self._answer_in_flight_duplicates()

    def _lost(self, publish: Publish, error: StorageError) -> None:
        if self.sequences is not None:
            self.sequences.forget_pushed(publish.producer.name)
        self._on_failed(error)

    @property
    def has_unsaved(self) -> bool:
        """Whether entries were persisted since the last snapshot."""
        return self._since_snapshot > 0

    def snapshot_persisted(self) -> None:
        """Snapshot of persisted entries under load: shortens the replay after a crash."""
        if self.sequences is not None and self._since_snapshot and self._counted_to is not None:
            self._since_snapshot = 0
            self._log.save_state_nowait(STATE, self.sequences.dump(self._counted_to))

    def snapshot(self) -> None:
        """Snapshot before a clean close: nothing has to be replayed."""
        if self.sequences is not None and self.sequences.persisted:
            self._log.save_state_nowait(STATE, self.sequences.dump(self._log.last_position))


def _pushed_whole(sequences: Sequences, name: str, publishes: Sequence[Publish]) -> bool:
    """Fast path: True and pushed if all ids are new and ascending and no entry is a chunk; otherwise none is pushed."""
    last = sequences.pushed.get(name, -1)
    for _, _, _, sequence, _, _, is_last_chunk in publishes:
        if sequence <= last or not is_last_chunk:
            return False
        last = sequence
    sequences.push(name, last)
    return True


def _persist_run(sequences: Sequences, producer: Producer, publishes: Sequence[Publish]) -> None:
    """Entries of one producer are durable: the highest sequence id counts."""
    if producer.fencing_epoch is not None:  # attempts of a Spark task: they leave notes
        for publish in publishes:
            if publish.is_last_chunk:
                sequences.persist(producer.name, publish.last_sequence, note_of(publish.payload))
        return
    ends = [publish.last_sequence for publish in publishes if publish.is_last_chunk]
    if ends:
        sequences.persist(producer.name, max(ends))


def note_of(payload: Payload) -> bytes:
    """The producer's note in the entry's metadata, for later attempts of the same task."""
    try:
        return entry_metadata(payload).producer_note
    except BadEntry:
        return b""
