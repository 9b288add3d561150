"""Mirror of a small subtree: read once, then kept current by a watch; read again after any gap.

The machine requests one read at a time, so the mirrored value of a key never goes back in time; a change during a read
is followed by another read. Between a change and its event the mirror is briefly outdated, never permanently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self, assert_never

from anabranch.metadata.interface import ChangeKind, MetadataStore, Versioned, Watch
from anabranch.metadata.recipes.event_stream import EventReader, EventStream
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

DIRTY_MAX = 64
"""More changed keys than this are read with one scan."""


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Started:
    """Start reading; the watch is registered."""


@dataclass(frozen=True, slots=True)
class ChangeHinted:
    """This key may have changed."""

    key: str


@dataclass(frozen=True, slots=True)
class Invalidated:
    """Changes were missed."""


@dataclass(frozen=True, slots=True)
class Scanned:
    items: Mapping[str, Versioned]


@dataclass(frozen=True, slots=True)
class KeyRead:
    key: str
    found: Versioned | None


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """Scan or Read was not answered."""


@dataclass(frozen=True, slots=True)
class PauseEnded:
    """The pause is over."""


Event = Started | ChangeHinted | Invalidated | Scanned | KeyRead | ReadFailed | PauseEnded


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Scan:
    """Read the whole subtree."""


@dataclass(frozen=True, slots=True)
class Read:
    key: str


@dataclass(frozen=True, slots=True)
class Pause:
    failures: int


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """The old and new record of a key; None if missing."""

    key: str
    old: Versioned | None
    new: Versioned | None


@dataclass(frozen=True, slots=True)
class NotifyReady:
    """The subtree has been read completely for the first time."""


Effect = Scan | Read | Pause | KeyChanged | NotifyReady


class MirrorMachine:
    def __init__(self) -> None:
        self._items: dict[str, Versioned] = {}
        self._must_scan = True
        self._dirty: dict[str, None] = {}
        self._asked: Scan | Read | None = None
        self._is_paused = False
        self._failures = 0
        self._is_ready = False

    @property
    def items(self) -> Mapping[str, Versioned]:
        return MappingProxyType(self._items)

    @property
    def is_current(self) -> bool:
        """False while a change is known and not read yet."""
        return self._is_ready and not self._must_scan and not self._dirty and self._asked is None

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Started():
                pass
            case ChangeHinted(key):
                self._dirty[key] = None
                if len(self._dirty) > DIRTY_MAX:
                    self._must_scan = True
            case Invalidated():
                self._must_scan = True
            case Scanned(items):
                self._asked, self._failures = None, 0
                effects += self._on_scan(items)
                if not self._is_ready:
                    self._is_ready = True
                    effects.append(NotifyReady())
            case KeyRead(key, found):
                self._asked, self._failures = None, 0
                effects += self._on_record(key, found)
            case ReadFailed():
                asked, self._asked = self._asked, None
                self._failures += 1
                self._is_paused = True
                if isinstance(asked, Read):
                    self._dirty[asked.key] = None
                else:
                    self._must_scan = True
                return [Pause(self._failures)]
            case PauseEnded():
                self._is_paused = False
            case _:
                assert_never(event)
        return effects + self._next()

    def _next(self) -> list[Effect]:
        if self._asked is not None or self._is_paused:
            return []
        if self._must_scan:
            self._must_scan = False
            self._dirty.clear()
            self._asked = Scan()
        elif self._dirty:
            key = next(iter(self._dirty))
            del self._dirty[key]
            self._asked = Read(key)
        return [] if self._asked is None else [self._asked]

    def _on_scan(self, items: Mapping[str, Versioned]) -> list[Effect]:
        effects: list[Effect] = []
        for key in [key for key in self._items if key not in items]:
            effects += self._on_record(key, None)
        for key, found in items.items():
            effects += self._on_record(key, found)
        return effects

    def _on_record(self, key: str, found: Versioned | None) -> list[Effect]:
        old = self._items.get(key)
        if found == old:
            return []
        if found is None:
            del self._items[key]
        else:
            self._items[key] = found
        return [KeyChanged(key, old, found)]


class Mirror:
    """The asyncio shell. `async with` starts it; `now` is the content, `changes` its changes."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        clock: Clock,
        chance: Chance,
        retry_delays: RetryDelays = RETRY_DELAYS,
    ) -> None:
        self._store = store
        self.prefix = prefix
        self._clock, self._chance, self._retry_delays = clock, chance, retry_delays
        self._machine = MirrorMachine()
        self._events: EventStream[KeyChanged] = EventStream()
        self._ready = asyncio.Event()
        self._current = asyncio.Event()
        self._watch: Watch | None = None
        self._pause: Timer | None = None
        self._tasks = TaskOwner("mirror")

    @property
    def now(self) -> Mapping[str, Versioned]:
        return self._machine.items

    @property
    def is_current(self) -> bool:
        return self._machine.is_current

    def changes(self) -> EventReader[KeyChanged]:
        """Changes from now on; a slow reader loses the oldest and reads `now`."""
        return self._events.read()

    async def wait_ready(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await self._ready.wait()

    async def wait_current(self, seconds: float) -> None:
        """Wait until `is_current`, which `changes` does not report."""
        async with asyncio.timeout(seconds):
            while not self.is_current:
                self._current.clear()
                await self._current.wait()

    def refresh(self) -> None:
        """Read the whole subtree again."""
        self._post(Invalidated())

    async def __aenter__(self) -> Self:
        self._watch = self._store.watch(self.prefix)
        self._tasks.spawn(self._follow(self._watch), "watch")
        self._post(Started())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._pause is not None:
            self._pause.cancel()
        await self._tasks.close()
        self._events.close()

    async def _follow(self, watch: Watch) -> None:
        async for change in watch:
            self._post(Invalidated() if change.kind is ChangeKind.INVALIDATED else ChangeHinted(change.key))

    def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            match effect:
                case Scan() | Read():
                    self._tasks.spawn(self._ask(effect), type(effect).__name__.lower())
                case Pause(failures):
                    seconds = self._retry_delays.retry_after(failures, self._chance.random())
                    self._pause = self._clock.call_later(seconds, lambda: self._post(PauseEnded()))
                case KeyChanged():
                    self._events.publish(effect)
                case NotifyReady():
                    self._ready.set()
                case _:
                    assert_never(effect)
        if self.is_current:
            self._current.set()

    async def _ask(self, effect: Scan | Read) -> None:
        answer: Event
        try:
            async with asyncio.timeout(self._retry_delays.answer_s):
                match effect:
                    case Scan():
                        answer = Scanned({key: found async for key, found in self._store.scan(self.prefix)})
                    case Read(key):
                        answer = KeyRead(key, await self._store.get(key))
        except (Error, TimeoutError) as error:
            log.debug("metadata mirror not read; retrying", extra={"prefix": self.prefix, "reason": str(error)})
            answer = ReadFailed()
        self._post(answer)
