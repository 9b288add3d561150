"""Watches the layout of one topic for all producers and consumers of a client: one session, with any broker.

Before the first layout, a final refusal ends the watch. Afterwards the last layout stays valid, and the session is
opened again without a limit.

| broker                             | what is watched                                                |
|------------------------------------|----------------------------------------------------------------|
| serves scalable topics             | a session: the first layout, then a push for every change      |
| does not, or has them switched off | the number of partitions, asked periodically; so also of a     |
|                                    | regular topic of Apache Pulsar, which does not push partitions |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from anabranch.client.config import Backoff, ConnectionPolicy, seconds
from anabranch.client.connection.connection import Connection
from anabranch.client.connection.connection_pool import ConnectionPool
from anabranch.client.connection.connection_state import command
from anabranch.client.errors import (
    ClientError,
    NotAllowed,
    NotReady,
    NotSupported,
    TimedOut,
    TopicNotFound,
    Unreachable,
    refusal,
)
from anabranch.client.topic.topic_view import LayoutFilter, TopicView, UnreadableLayout, read_view, synthetic_view
from anabranch.model.errors import Error
from anabranch.model.names import Domain, TopicName
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.entry import Bytes
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

DOUBT_SECONDS = 2.0
"""Apache Pulsar (5.0.0-M1) answers "not found" for every topic that it cannot look up at the moment, for example during
an unload. Its answer counts only after it was the same for this long."""

REFRESH_BACKOFF = Backoff(initial=0.02, maximum=1.0, jitter=0)  # between refreshes that brought no new layout

log = get_logger(__name__)

GONE_SECONDS_MAX = 1.0
"""Longest delay between two questions for a topic that was deleted: it is found soon after it was created again."""

Follower = Callable[[TopicView], None]
GoneFollower = Callable[[TopicNotFound | None], None]
"""Called with the error when the topic was deleted, and with None when it exists again, before the new view."""


class RefreshRequested(NotReady):
    """A producer or consumer knows that there must be a newer layout."""

    code = "asked-again"


class LayoutWatch:
    """Created by `LayoutWatches`. Followers are called on the event loop, at once and for every new view; must not
    raise."""

    def __init__(
        self,
        topic: TopicName,
        session_id: int,
        pool: ConnectionPool,
        policy: ConnectionPolicy,
        clock: Clock,
        chance: Chance,
        creates: bool = True,
    ) -> None:
        self.topic = topic
        self._creates = creates
        self._session_id = session_id
        self._pool = pool
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._filter = LayoutFilter()
        self._followers: list[Follower] = []
        self._gone_followers: list[GoneFollower] = []
        self._gone: TopicNotFound | None = None  # set while the topic does not exist, after the first view
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._first: asyncio.Future[ClientError | None] = loop.create_future()
        self._answered: asyncio.Future[None] = loop.create_future()
        self._end: asyncio.Future[ClientError] = loop.create_future()  # of the session that is open
        self._is_refresh_wanted = False
        self._refreshes_in_vain = 0
        self._is_foreign = False  # the broker that was asked last
        self._missing_since: float | None = None
        self._last_error: ClientError | None = None

    @property
    def view(self) -> TopicView:
        """The current view; set once `wait_first` has returned."""
        assert self._filter.view is not None
        return self._filter.view

    @property
    def is_over(self) -> bool:
        """It ended with an error before the first view."""
        return self._first.done() and self._first.result() is not None

    async def wait_first(self, timeout_s: float) -> TopicView:
        """Wait for the first view. Raises the final error, or TimedOut with the last reason."""
        try:
            async with asyncio.timeout(timeout_s):
                error = await asyncio.shield(self._first)
        except TimeoutError:
            why = "the broker does not answer" if self._last_error is None else self._last_error.reason
            raise TimedOut(f"{self.topic} is not available: {why}") from self._last_error
        if error is not None:
            raise error
        return self.view

    def follow(self, follower: Follower, on_gone: GoneFollower | None = None) -> Callable[[], None]:
        """Returns a function that ends it."""
        self._followers.append(follower)
        if self._filter.view is not None:
            follower(self._filter.view)
        if on_gone is not None:
            self._gone_followers.append(on_gone)
            if self._gone is not None:
                on_gone(self._gone)

        def unfollow() -> None:
            if follower in self._followers:
                self._followers.remove(follower)
            if on_gone in self._gone_followers:
                self._gone_followers.remove(on_gone)

        return unfollow

    def _set_gone(self, gone: TopicNotFound | None) -> None:
        if (gone is None) == (self._gone is None):
            return
        self._gone = gone
        if gone is not None:
            log.warning(
                "topic was deleted, waiting until it is created again",
                extra={"topic": str(self.topic), "reason": gone.reason},
            )
        for follower in list(self._gone_followers):
            follower(gone)

    def refresh(self) -> None:
        """Ask for a newer layout, because a segment was found sealed or gone. Concurrent calls make one request."""
        if self._answered.done():
            self._over(RefreshRequested("a newer layout is needed"))
        else:
            self._is_refresh_wanted = True  # the pending answer may be older than this call

    # -- the session

    async def run(self) -> None:
        """Runs until cancelled, or until a final refusal before the first layout."""
        attempt = 0
        while True:
            self._end, self._answered = self._loop.create_future(), self._loop.create_future()
            self._is_refresh_wanted = False
            try:
                error = await self._session()
            except Error as refused:
                error = refused if isinstance(refused, ClientError) else ClientError(refused.reason)
            self._last_error = error
            if not self._first.done() and self._is_final(error):
                self._first.set_result(error)
                return
            if self._answered.done():
                attempt = 0
            if isinstance(error, RefreshRequested):
                if self._refreshes_in_vain:  # the first refresh is immediate, because messages wait for it
                    await self._clock.sleep(REFRESH_BACKOFF.delay(self._refreshes_in_vain - 1, 0))
                self._refreshes_in_vain += 1
                continue
            delay = self._policy.backoff.delay(attempt, self._chance.random())
            if isinstance(error, TopicNotFound) and not self._is_foreign:  # Pulsar also says so of a topic that moves
                self._set_gone(error)
                delay = min(delay, GONE_SECONDS_MAX)
            log.info(
                "opening the layout session again",
                extra={"topic": str(self.topic), "reason": error.reason, "delay_s": delay},
            )
            await self._clock.sleep(delay)
            attempt += 1

    def _is_final(self, error: ClientError) -> bool:
        if not isinstance(error, TopicNotFound) or not self._is_foreign:
            self._missing_since = None
            return not error.retryable
        now = self._clock.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= DOUBT_SECONDS

    async def _session(self) -> ClientError:
        """One layout session; returns the reason why it ended."""
        connection = await self._pool.connection()
        is_regular = self.topic.domain is Domain.PERSISTENT
        if not connection.supports_scalable_topics:
            if not is_regular:
                raise NotSupported(f"{self.topic}: the broker does not serve scalable topics")
            return await self._count_partitions()
        if not connection.is_usable:  # it broke already, and listeners are no longer notified
            raise Unreachable("the connection broke before the layout was asked for")
        self._is_foreign = not connection.has_extensions
        connection.listen_session(self._session_id, self)
        try:
            self._open(connection)
            async with asyncio.timeout(self._pool.answer_timeout_s):
                await asyncio.wait((self._answered, self._end), return_when=asyncio.FIRST_COMPLETED)
            if self._end.done() and isinstance(self._end.result(), NotAllowed) and is_regular:
                return await self._count_partitions()  # scalable topics are switched off
            if self._answered.done() and self.view.is_synthetic and not self.view.is_pushed and is_regular:
                return await self._count_partitions()
            return await self._end
        except TimeoutError as cause:
            raise TimedOut("no layout in time") from cause
        finally:
            connection.unlisten_session(self._session_id)
            connection.write(command(BaseCommand.SCALABLE_TOPIC_CLOSE, session_id=self._session_id))

    def _open(self, connection: Connection) -> None:
        # Only the first request may create the topic: watching must not bring back a topic that was deleted since.
        # A client that only reads creates none at all.
        connection.write(
            command(
                BaseCommand.SCALABLE_TOPIC_LOOKUP,
                session_id=self._session_id,
                topic=str(self.topic),
                create_if_missing=self._creates and not self._first.done(),
            )
        )

    async def _count_partitions(self) -> ClientError:
        """Ask for the partition count until the session ends, because brokers do not push new partitions."""
        if self._end.done() and isinstance(self._end.result(), NotAllowed):
            self._end = self._loop.create_future()
        while True:
            count = await self._pool.partitions(str(self.topic))
            self._on_view(synthetic_view(self.topic, count, self._clock.now_ms()))
            pause: asyncio.Future[None] = self._loop.create_future()
            timer = self._clock.call_later(seconds(self._policy.partitions_every), partial(pause.set_result, None))
            try:
                await asyncio.wait((pause, self._end), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
            if self._end.done():
                return self._end.result()
            if not self.view.is_synthetic:
                return await self._end

    def on_command(self, kind: int, body: Any, payload: Bytes) -> None:
        if not body.HasField("dag"):
            self._over(refusal(body.error, body.message))
            return
        try:
            self._on_view(read_view(body, self.topic, self._filter.view))
        except UnreadableLayout as error:
            self._over(error)

    def on_detached(self, error: ClientError) -> None:
        self._over(error)

    def _over(self, error: ClientError) -> None:
        if not self._end.done():
            self._end.set_result(error)

    def _on_view(self, view: TopicView) -> None:
        known = self._filter.view
        is_news = self._filter.accept(view)
        if known is not None and (known.generation, known.layout.epoch) != (
            self.view.generation,
            self.view.layout.epoch,
        ):
            self._refreshes_in_vain = 0
        self._set_gone(None)
        if not self._answered.done():
            self._answered.set_result(None)
        if not self._first.done():
            self._first.set_result(None)
        if is_news:
            for follower in list(self._followers):
                follower(self.view)
        if self._is_refresh_wanted:
            self._is_refresh_wanted = False
            self._over(RefreshRequested("a newer layout is needed"))


class LayoutWatches:
    """One watch per topic, kept while there is a holder."""

    def __init__(self, pool: ConnectionPool, policy: ConnectionPolicy, clock: Clock, chance: Chance) -> None:
        self._pool = pool
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._watches: dict[TopicName, tuple[LayoutWatch, list[object], TaskOwner]] = {}
        self._last_session = 0

    def hold(self, topic: TopicName, holder: object, *, creates: bool = True) -> LayoutWatch:
        """The watch of this topic, kept until `release` with the same `holder`. `creates`: may create the topic."""
        known = self._watches.get(topic)
        if known is not None and not known[0].is_over:
            known[1].append(holder)
            return known[0]
        session_id = self.new_session_id()
        watch = LayoutWatch(topic, session_id, self._pool, self._policy, self._clock, self._chance, creates)
        tasks = TaskOwner("watch")
        tasks.spawn(watch.run(), str(topic))
        self._watches[topic] = (watch, [holder], tasks)
        return watch

    def new_session_id(self) -> int:
        """Unique among the sessions of the client, of any kind."""
        self._last_session += 1
        return self._last_session

    async def release(self, watch: LayoutWatch, holder: object) -> None:
        known = self._watches.get(watch.topic)
        if known is None or known[0] is not watch or holder not in known[1]:
            return
        known[1].remove(holder)
        if not known[1]:
            del self._watches[watch.topic]
            await known[2].close()

    async def close(self) -> None:
        watches, self._watches = list(self._watches.values()), {}
        for _, _, tasks in watches:
            tasks.cancel()
        for _, _, tasks in watches:
            await tasks.close()
