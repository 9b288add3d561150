"""Follows the topics of namespaces for clients that watch them.

A namespace is followed while it has watchers: all names are read once, then only those whose keys changed (hints of the
store, so also changes of other brokers). Watchers with the same selector share one list, so that it is matched once.

A `TopicSource` reads the topics of one kind, a `Selector` chooses among them: `topic_lists`, `scalable_lists`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol, Self

from anabranch.broker.catalog.topic_lists_state import TopicList
from anabranch.metadata.interface import Change, ChangeKind, MetadataStore, StoreUnavailable, Watch
from anabranch.model.errors import LimitExceeded, NotAllowed
from anabranch.model.names import parse_namespace
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

NAMESPACES_MAX = 1_000
SELECTORS_MAX = 1_000
"""Different selectors per namespace."""
LOAD_SECONDS = 20.0
GATHER_SECONDS = 0.1
"""Changes that follow one another are sent together, at this interval."""
STEP_COST = 20_000
"""Cost of matching (about 2 ms) until other tasks get a turn."""
OPEN_COST_MAX = 5_000_000
"""Cost of matching until a new watch is refused: its selector is too expensive for this many topics."""


class TopicListListener(Protocol):
    def topics_changed(self, found: TopicList) -> None: ...


class Selector(Protocol):
    """Chooses topics by what their source says of them."""

    @property
    def text(self) -> str:
        """The same for selectors that choose the same topics."""

    @property
    def cost(self) -> int:
        """Of all matching so far."""

    def matches(self, described: Any) -> bool: ...


class TopicSource(Protocol):
    """The topics of one kind in one namespace."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Their keys are below these."""

    def concerns(self, change: Change) -> bool:
        """Whether the key must be read again."""

    async def read(self, keys: list[str], is_all: bool) -> None:
        """Read these keys, or all topics. Raises StoreUnavailable."""

    def described(self) -> dict[str, Any]:
        """Names, each with what selectors are compared with."""


class NamespaceLists:
    """`async with NamespaceLists(…)`: namespaces can be watched inside."""

    def __init__(
        self,
        store: MetadataStore,
        source: Callable[[str], TopicSource],
        clock: Clock,
        patience: RetryDelays = RETRY_DELAYS,
    ) -> None:
        """`source` makes the source of a namespace."""
        self._store, self._source, self._clock, self._patience = store, source, clock, patience
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

    async def watch(self, namespace: str, selector: Selector, listener: TopicListListener) -> TopicListWatch:
        """The listener is called from now on. Raises BadName, NotAllowed, LimitExceeded, StoreUnavailable."""
        parse_namespace(namespace)
        followed = self._namespaces.get(namespace)
        if followed is None:
            if len(self._namespaces) >= NAMESPACES_MAX:
                raise LimitExceeded(f"topics of {NAMESPACES_MAX} namespaces are watched at this broker already")
            source = self._source(namespace)
            followed = _FollowedNamespace(namespace, self._store, source, self._clock, self._patience)
            self._namespaces[namespace] = followed
            followed.start()
        followed.watchers += 1
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                view = await followed.view(selector)
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
    """The topics that one selector chooses, and who watches them."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.found = TopicList.of(())
        self.listeners: list[TopicListListener] = []

    async def matching(self, topics: Iterable[tuple[str, Any]], clock: Clock, cost_max: int | None = None) -> set[str]:
        found, selector = set[str](), self.selector
        turn = start = selector.cost
        for name, described in topics:
            if selector.matches(described):
                found.add(name)
            if selector.cost - turn > STEP_COST:
                turn = selector.cost
                if cost_max is not None and turn - start > cost_max:
                    raise NotAllowed("the topic pattern is too expensive for the topics of this namespace")
                await clock.sleep(0)
        return found


class _FollowedNamespace:
    def __init__(
        self, namespace: str, store: MetadataStore, source: TopicSource, clock: Clock, patience: RetryDelays
    ) -> None:
        self.watchers = 0
        self._namespace, self._store, self._source = namespace, store, source
        self._clock, self._patience = clock, patience
        self._described: dict[str, Any] = {}
        self._views: dict[str, _View] = {}
        self._unread: dict[str, None] = {}
        self._is_all_unread = True
        self._noted, self._loaded = asyncio.Event(), asyncio.Event()
        self._lock = asyncio.Lock()  # views and names change together
        self._watches: list[Watch] = []
        self._tasks = TaskOwner(f"topics of {namespace}")

    def start(self) -> None:
        for root in self._source.roots:
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

    async def view(self, selector: Selector) -> _View:
        await self._loaded.wait()
        async with self._lock:
            view = self._views.get(selector.text)
            if view is None:
                if len(self._views) >= SELECTORS_MAX:
                    raise LimitExceeded(f"{SELECTORS_MAX} patterns of {self._namespace} are watched already")
                view = _View(selector)
                view.found = TopicList.of(await view.matching(self._described.items(), self._clock, OPEN_COST_MAX))
                self._views[selector.text] = view
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
        if not self._source.concerns(change):
            return False
        self._unread[change.key] = None
        return True

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
                    await self._source.read(keys, is_all)
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

    async def _publish(self) -> None:
        """The names as read now, to every view that they concern."""
        async with self._lock:
            before, self._described = self._described, self._source.described()
            after = self._described
            added = [(name, said) for name, said in after.items() if name not in before or before[name] != said]
            deleted = before.keys() - after.keys() | {name for name, _ in added if name in before}
            for view in list(self._views.values()):
                found = (view.found.names - deleted) | await view.matching(added, self._clock)
                if found != view.found.names:
                    view.found = TopicList.of(found)
                    for listener in tuple(view.listeners):
                        listener.topics_changed(view.found)
