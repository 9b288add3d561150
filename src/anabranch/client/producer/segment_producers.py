"""The segment producers of one producer: performs the effects of `ProducerState` and follows the topic's layout.

Every segment lane of the state has one `SegmentProducer` here, from its `Open` effect to its `Drop` effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from anabranch.client.context import ClientContext
from anabranch.client.errors import ClientError
from anabranch.client.messages.outgoing import EntryFormat, OutgoingMessage
from anabranch.client.producer.late_receipts import LateReceipt, LateReceiptListeners
from anabranch.client.producer.options import ProducerOptions
from anabranch.client.producer.producer_effects import (
    AskLayout,
    CloseRequest,
    Drop,
    On,
    Open,
    ProducerEffect,
    Reopen,
    SegmentLane,
)
from anabranch.client.producer.producer_state import ProducerState
from anabranch.client.producer.segment_producer import SegmentProducer
from anabranch.client.producer.segment_producer_state import Effect
from anabranch.client.topic.layout_watch import LayoutWatch
from anabranch.client.topic.topic_view import BrokerUrls, TopicView, with_partition_hash
from anabranch.runtime.clock import Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

GONE_SECONDS = 2.0
"""How long messages wait for a deleted topic to be created again, before they fail."""

OnStored = Callable[[Sequence[OutgoingMessage], int, int, int], None]
"""Called with the records, the number in message ids, the ledger and the entry."""
OnFailed = Callable[[Sequence[OutgoingMessage], ClientError], None]


class SegmentProducers:
    """Calls `stored` or `failed` once for every record, on the event loop."""

    def __init__(
        self,
        topic: str,
        state: ProducerState,
        style: EntryFormat,
        options: ProducerOptions,
        context: ClientContext,
        stored: OnStored,
        failed: OnFailed,
    ) -> None:
        self.topic = topic
        self.style = style
        self.late_listeners = LateReceiptListeners(context.clock)
        self._state = state
        self._options = options
        self._context = context
        self._stored = stored
        self._failed = failed
        self._tasks = TaskOwner("producer")
        self._producers: dict[SegmentLane, SegmentProducer] = {}
        self._watch: LayoutWatch | None = None
        self._unfollow: Callable[[], None] | None = None
        self._view: TopicView | None = None
        self._hints: dict[int, BrokerUrls] = {}  # of the children of the segment that was sealed last
        self._ready: asyncio.Future[None] | None = None  # during `open`
        self._gone_timer: Timer | None = None  # runs while the topic does not exist

    async def open(self, watch: LayoutWatch) -> int:
        """Returns when every active segment has its producer: the last sequence id that the brokers have, or -1."""
        self._watch = watch
        self._ready = asyncio.get_running_loop().create_future()
        try:
            self._unfollow = watch.follow(self._apply_view, self._on_gone)
            await self._ready
        finally:
            self._ready = None
        return max((one.last_sequence_id for one in self._producers.values()), default=-1)

    @property
    def last_error(self) -> ClientError | None:
        """Why a segment has no producer yet, where that is known."""
        return next((one.last_error for one in self._producers.values() if one.last_error is not None), None)

    async def close(self, error: ClientError, timeout_s: float) -> None:
        """Fails what has no outcome with `error`, and closes every segment producer."""
        if self._unfollow is not None:
            self._unfollow()
        if self._gone_timer is not None:
            self._gone_timer.cancel()
        self.late_listeners.close()
        self.perform(self._state.close(error))
        try:
            await asyncio.gather(*(one.close(timeout_s) for one in self._producers.values()))
        finally:
            await self._tasks.close()

    # -- effects

    def do(self, track: SegmentLane, effects: Sequence[Effect]) -> None:
        self._producers[track].do(effects)

    def perform(self, effects: Sequence[ProducerEffect]) -> None:
        for effect in effects:
            match effect:
                case On(track, wanted):
                    self._producers[track].do(wanted)
                case Open(track):
                    self._open(track)
                case Reopen(track):
                    self._producers[track].reopen()
                case CloseRequest(track):
                    self._producers[track].request_close()
                case Drop(track):
                    self._producers.pop(track).drop()
                case AskLayout():
                    assert self._watch is not None
                    self._watch.refresh()

    def _open(self, track: SegmentLane) -> None:
        view = self._view
        assert view is not None
        segment = track.segment
        hint = self._hints.pop(segment.segment_id, None) or view.brokers.get(segment.segment_id)
        if hint is None and view.plan is not None:
            hint = view.plan.brokers.get(segment.segment_id)
        opened = self._producers[track] = SegmentProducer(
            track,
            view.backing(segment),
            view.lane(segment),
            self,
            self._state,
            self._options,
            self._context,
            self._tasks,
            hint,
        )
        opened.start(is_patient=self._ready is None)

    # -- callbacks

    def _apply_view(self, view: TopicView) -> None:
        self._view = view
        self.topic = str(view.topic)
        self.perform(self._state.viewed(with_partition_hash(view, self._options.partition_hash)))
        self._check_ready()

    def _on_gone(self, error: ClientError | None) -> None:
        """The topic was deleted, or exists again (None)."""
        if self._gone_timer is not None:
            self._gone_timer.cancel()
            self._gone_timer = None
        if error is None:
            self._state.returned()
        else:
            self._gone_timer = self._context.clock.call_later(GONE_SECONDS, partial(self._abandon, error))

    def _abandon(self, error: ClientError) -> None:
        self.perform(self._state.gone(error))

    def on_opened(self) -> None:
        self._check_ready()

    @property
    def is_change_planned(self) -> bool:
        return self._view is not None and self._view.plan is not None

    def on_ended(self, track: SegmentLane, error: ClientError) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self.perform(self._state.failed(track, error))

    def on_stored(self, records: Sequence[OutgoingMessage], lane: int, ledger: int, position: int) -> None:
        self._stored(records, lane, ledger, position)

    def on_failed(self, records: Sequence[OutgoingMessage], error: ClientError) -> None:
        self._failed(records, error)

    def on_child_brokers(self, brokers: Mapping[int, BrokerUrls]) -> None:
        self._hints = dict(brokers)

    def on_late_receipts(self, track: SegmentLane, late: Sequence[LateReceipt]) -> None:
        effects, doubled = self._state.late_receipts(track, late)
        self.perform(effects)
        if doubled:
            sequence_ids = sorted(record.sequence_id for record in doubled)
            log.warning(
                "messages may be stored twice: their receipts arrived after they were sent again",
                extra={"topic": self.topic, "producer": self._options.name, "sequence_ids": sequence_ids},
            )

    def _check_ready(self) -> None:
        if self._ready is not None and not self._ready.done() and self._state.is_ready:
            self._ready.set_result(None)
