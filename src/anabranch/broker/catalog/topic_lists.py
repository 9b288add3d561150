"""Follows the topics of namespaces for clients that watch them (WATCH_TOPIC_LIST).

A namespace is followed while it has watchers: all names are read once, then only those whose keys changed (hints of the
store, so also changes of other brokers). Watchers with the same pattern share one list, so that it is matched once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.topic_lists_state import NamespaceTopics, TopicList
from anabranch.metadata.interface import Change, ChangeKind, MetadataStore, StoreUnavailable, Watch
from anabranch.model.errors import BadName, LimitExceeded, NotAllowed
from anabranch.model.metadata_keys import PARTITIONED_TOPICS
from anabranch.model.names import TopicName, parse_namespace
from anabranch.model.topic_pattern import TopicPattern
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

NAMESPACES_MAX = 1_000
PATTERNS_MAX = 1_000
"""Different patterns per namespace."""
LOAD_SECONDS = 20.0
GATHER_SECONDS = 0.1
"""Changes that follow one another are sent together, at this interval."""
STEP_COST = 20_000
"""Visited states of a pattern (about 2 ms) until other tasks get a turn."""
OPEN_COST_MAX = 5_000_000
"""Visited states until a new watch is refused: its pattern is too expensive for this many topics."""


class TopicListListener(Protocol):
    def topics_changed(self, found: TopicList) -> None: ...


class TopicLists:
    """`async with TopicLists(…)`: namespaces can be watched inside."""

    def __init__(
        self, store: MetadataStore, catalog: Catalog, clock: Clock, patience: RetryDelays = RETRY_DELAYS
    ) -> None:
        self._store, self._catalog, self._clock, self._patience = store, catalog, clock, patience
        self._namespaces: dict[str, _FollowedNamespace] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        followed = list(self._namespaces.values())
        self._namespaces.clear()
        for one in followed:
            await one.stop()

    def __len__(self) -> int:
        """Followed namespaces."""
        return len(self._namespaces)

    async def watch(self, namespace: str, pattern: str, listener: TopicListListener) -> TopicListWatch:
        """The listener is called from now on. Raises BadName, NotAllowed, LimitExceeded, StoreUnavailable."""
        parse_namespace(namespace)
        parsed = TopicPattern(pattern)
        followed = self._namespaces.get(namespace)
        if followed is None:
            if len(self._namespaces) >= NAMESPACES_MAX:
                raise LimitExceeded(f"topics of {NAMESPACES_MAX} namespaces are watched at this broker already")
            followed = _FollowedNamespace(namespace, self._store, self._catalog, self._clock, self._patience)
            self._namespaces[namespace] = followed
            followed.start()
        followed.watchers += 1
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                view = await followed.view(parsed)
        except TimeoutError as late:
            self._release(namespace, followed)
            raise StoreUnavailable(f"topics of {namespace} could not be read within {LOAD_SECONDS:.0f} s") from late
        except BaseException:
            self._release(namespace, followed)
            raise
        view.listeners.append(listener)
        return TopicListWatch(view, lambda: self._closed(namespace, followed, view, listener))

    def _closed(self, namespace: str, followed: _FollowedNamespace, view: _View, listener: TopicListListener) -> None:
        view.listeners.remove(listener)
        self._release(namespace, followed)

    def _release(self, namespace: str, followed: _FollowedNamespace) -> None:
        followed.watchers -= 1
        followed.forget_unused()
        if not followed.watchers and self._namespaces.get(namespace) is followed:
            del self._namespaces[namespace]
            followed.cancel()


class TopicListWatch:
    """One watch: what it sees now. Close it once."""

    def __init__(self, view: _View, on_close: Callable[[], None]) -> None:
        self._view, self._on_close = view, on_close

    @property
    def found(self) -> TopicList:
        return self._view.found

    def close(self) -> None:
        self._on_close()


class _View:
    """The topics that match one pattern, and who watches them."""

    def __init__(self, pattern: TopicPattern) -> None:
        self.pattern = pattern
        self.found = TopicList.of(())
        self.listeners: list[TopicListListener] = []

    async def matching(self, texts: Iterable[tuple[str, str]], clock: Clock, cost_max: int | None = None) -> set[str]:
        found, start = set(), self.pattern.cost
        turn = start
        for name, text in texts:
            if self.pattern.matches(text):
                found.add(name)
            if self.pattern.cost - turn > STEP_COST:
                turn = self.pattern.cost
                if cost_max is not None and turn - start > cost_max:
                    raise NotAllowed("the topic pattern is too expensive for the topics of this namespace")
                await clock.sleep(0)
        return found


class _FollowedNamespace:
    def __init__(
        self, namespace: str, store: MetadataStore, catalog: Catalog, clock: Clock, patience: RetryDelays
    ) -> None:
        self.watchers = 0
        self._namespace, self._store, self._catalog = namespace, store, catalog
        self._clock, self._patience = clock, patience
        self._roots = (catalog.topics_key(namespace), f"{PARTITIONED_TOPICS}/{namespace}")
        self._topics = NamespaceTopics()
        self._texts: dict[str, str] = {}
        self._views: dict[str, _View] = {}
        self._unread: dict[str, None] = {}
        self._is_all_unread = True
        self._noted, self._loaded = asyncio.Event(), asyncio.Event()
        self._lock = asyncio.Lock()  # views and names change together
        self._watches: list[Watch] = []
        self._tasks = TaskOwner(f"topics of {namespace}")

    def start(self) -> None:
        for root in self._roots:
            watch = self._store.watch(root)
            self._watches.append(watch)
            self._tasks.spawn(self._follow(watch), f"follow {root}")
        self._noted.set()
        self._tasks.spawn(self._work(), "read")

    def cancel(self) -> None:
        for watch in self._watches:
            watch.close()
        self._tasks.cancel()

    async def stop(self) -> None:
        self.cancel()
        await self._tasks.close()

    async def view(self, pattern: TopicPattern) -> _View:
        await self._loaded.wait()
        async with self._lock:
            view = self._views.get(pattern.text)
            if view is None:
                if len(self._views) >= PATTERNS_MAX:
                    raise LimitExceeded(f"{PATTERNS_MAX} patterns of {self._namespace} are watched already")
                view = _View(pattern)
                view.found = TopicList.of(await view.matching(self._texts.items(), self._clock, OPEN_COST_MAX))
                self._views[pattern.text] = view
            return view

    def forget_unused(self) -> None:
        self._views = {text: view for text, view in self._views.items() if view.listeners}

    # -- following

    async def _follow(self, watch: Watch) -> None:
        async for change in watch:
            if self._note(change):
                self._noted.set()

    def _note(self, change: Change) -> bool:
        if change.kind is ChangeKind.INVALIDATED:
            self._is_all_unread = True
            return True
        if (topic := self._topic_at(change.key)) is None:
            return False  # the root, or a cursor
        is_record = change.key.startswith(f"{self._roots[0]}/")
        if is_record and change.kind is ChangeKind.MODIFIED and self._topics.has_record(topic):
            return False  # a record changes with every new ledger
        self._unread[change.key] = None
        return True

    def _topic_at(self, key: str) -> TopicName | None:
        for root in self._roots:
            if key.startswith(f"{root}/") and "/" not in (local := key.removeprefix(f"{root}/")):
                try:
                    return TopicName.from_rest("persistent", *parse_namespace(self._namespace), local)
                except BadName:
                    return None
        return None

    async def _work(self) -> None:
        failures = 0
        while True:
            await self._noted.wait()
            self._noted.clear()
            keys, is_all = list(self._unread), self._is_all_unread
            self._unread.clear()
            self._is_all_unread = False
            try:
                async with asyncio.timeout(LOAD_SECONDS):
                    await self._read(keys, is_all)
                failures = 0
            except (StoreUnavailable, TimeoutError) as error:
                log.warning(
                    "topics of a watched namespace not read; will be retried",
                    extra={"namespace": self._namespace, "reason": str(error)},
                )
                self._unread.update(dict.fromkeys(keys))
                self._is_all_unread = self._is_all_unread or is_all
                self._noted.set()
                failures += 1
                await self._clock.sleep(self._patience.retry_after(failures, 0.5))
                continue
            await self._publish()
            self._loaded.set()
            await self._clock.sleep(GATHER_SECONDS)

    async def _read(self, keys: list[str], is_all: bool) -> None:
        catalog, topics = self._catalog, self._topics
        if is_all:
            recorded = await catalog.topics(self._namespace)
            partitioned = await catalog.partitioned_topics(self._namespace, "persistent")
            topics.replace(recorded, {topic: await catalog.partitions(topic) for topic in partitioned})
        for key in keys:
            if (topic := self._topic_at(key)) is None:
                continue
            if key.startswith(f"{self._roots[0]}/"):
                topics.note_record(topic, exists=await catalog.exists(topic))
            else:
                topics.note_partitions(topic, await catalog.partitions(topic))

    async def _publish(self) -> None:
        """The names as read now, to every view that they concern."""
        async with self._lock:
            before, self._texts = self._texts, self._topics.texts()
            added = [(name, text) for name, text in self._texts.items() if name not in before]
            deleted = before.keys() - self._texts.keys()
            for view in list(self._views.values()):
                more = await view.matching(added, self._clock)
                less = view.found.names & deleted
                if more or less:
                    view.found = TopicList.of((view.found.names | more) - less)
                    for listener in tuple(view.listeners):
                        listener.topics_changed(view.found)
