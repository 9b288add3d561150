"""A coherent picture of a small subtree: read once, then kept by watching; read again after any gap.

The machine asks for one read at a time, so a key never goes back in time; a hint that comes while something is being
read is followed by another read. Between a change and its hint the picture is a moment old, never wrong for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self, assert_never

from anabranch.metadata.interface import ChangeKind, MetadataStore, Versioned, Watch
from anabranch.metadata.recipes.event_stream import EventStream, NewsReader
from anabranch.model.errors import Error
from anabranch.runtime.chance import Chance
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.retry_delays import RETRY_DELAYS, RetryDelays
from anabranch.runtime.tasks import TaskOwner

log = logging.getLogger(__name__)

DIRTY_MAX = 64
"""More changed keys than this are read with one scan."""


# events ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begun:
    """Start to read; the watch is there."""


@dataclass(frozen=True, slots=True)
class Hinted:
    """This key changed."""

    key: str


@dataclass(frozen=True, slots=True)
class Invalidated:
    """Changes were missed."""


@dataclass(frozen=True, slots=True)
class Scanned:
    items: Mapping[str, Versioned]


@dataclass(frozen=True, slots=True)
class WasRead:
    key: str
    found: Versioned | None


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The answer to Scan or Read did not come."""


@dataclass(frozen=True, slots=True)
class Rested:
    """The pause is over."""


Event = Begun | Hinted | Invalidated | Scanned | WasRead | ReadFailed | Rested


# effects --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Scan:
    """Read all."""


@dataclass(frozen=True, slots=True)
class Read:
    key: str


@dataclass(frozen=True, slots=True)
class Rest:
    failures: int


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """What a key was and is now; None: not there."""

    key: str
    old: Versioned | None
    new: Versioned | None


@dataclass(frozen=True, slots=True)
class TellReady:
    """The picture is complete for the first time."""


Effect = Scan | Read | Rest | KeyChanged | TellReady


class MirrorMachine:
    def __init__(self) -> None:
        self._items: dict[str, Versioned] = {}
        self._must_scan = True
        self._dirty: dict[str, None] = {}
        self._asked: Scan | Read | None = None
        self._is_resting = False
        self._failures = 0
        self._is_ready = False

    @property
    def items(self) -> Mapping[str, Versioned]:
        return MappingProxyType(self._items)

    @property
    def is_current(self) -> bool:
        """Nothing is known to be missing."""
        return self._is_ready and not self._must_scan and not self._dirty and self._asked is None

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Begun():
                pass
            case Hinted(key):
                self._dirty[key] = None
                if len(self._dirty) > DIRTY_MAX:
                    self._must_scan = True
            case Invalidated():
                self._must_scan = True
            case Scanned(items):
                self._asked, self._failures = None, 0
                effects += self._take(items)
                if not self._is_ready:
                    self._is_ready = True
                    effects.append(TellReady())
            case WasRead(key, found):
                self._asked, self._failures = None, 0
                effects += self._note(key, found)
            case ReadFailed():
                asked, self._asked = self._asked, None
                self._failures += 1
                self._is_resting = True
                if isinstance(asked, Read):
                    self._dirty[asked.key] = None
                else:
                    self._must_scan = True
                return [Rest(self._failures)]
            case Rested():
                self._is_resting = False
            case _:
                assert_never(event)
        return effects + self._next()

    def _next(self) -> list[Effect]:
        if self._asked is not None or self._is_resting:
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

    def _take(self, items: Mapping[str, Versioned]) -> list[Effect]:
        effects: list[Effect] = []
        for key in [key for key in self._items if key not in items]:
            effects += self._note(key, None)
        for key, found in items.items():
            effects += self._note(key, found)
        return effects

    def _note(self, key: str, found: Versioned | None) -> list[Effect]:
        old = self._items.get(key)
        if found == old:
            return []
        if found is None:
            del self._items[key]
        else:
            self._items[key] = found
        return [KeyChanged(key, old, found)]


class Mirror:
    """The shell. `async with` starts it; `now` is the picture, `changes` tells what becomes of it."""

    def __init__(
        self, store: MetadataStore, prefix: str, *, clock: Clock, chance: Chance, patience: RetryDelays = RETRY_DELAYS
    ) -> None:
        self._store = store
        self.prefix = prefix
        self._clock, self._chance, self._patience = clock, chance, patience
        self._machine = MirrorMachine()
        self._news: EventStream[KeyChanged] = EventStream()
        self._ready = asyncio.Event()
        self._settled = asyncio.Event()
        self._watch: Watch | None = None
        self._rest: Timer | None = None
        self._tasks = TaskOwner("mirror")

    @property
    def now(self) -> Mapping[str, Versioned]:
        return self._machine.items

    @property
    def is_current(self) -> bool:
        return self._machine.is_current

    def changes(self) -> NewsReader[KeyChanged]:
        """What changes from now on; a slow reader loses the oldest and looks at `now`."""
        return self._news.read()

    async def wait_ready(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await self._ready.wait()

    async def wait_current(self, seconds: float) -> None:
        """Until nothing is known to be missing; that alone is no change and is not told by `changes`."""
        async with asyncio.timeout(seconds):
            while not self.is_current:
                self._settled.clear()
                await self._settled.wait()

    def refresh(self) -> None:
        """Read everything again, with whatever the store has now."""
        self._post(Invalidated())

    async def __aenter__(self) -> Self:
        self._watch = self._store.watch(self.prefix)
        self._tasks.spawn(self._follow(self._watch), "watch")
        self._post(Begun())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._rest is not None:
            self._rest.cancel()
        await self._tasks.close()
        self._news.close()

    async def _follow(self, watch: Watch) -> None:
        async for change in watch:
            self._post(Invalidated() if change.kind is ChangeKind.INVALIDATED else Hinted(change.key))

    def _post(self, event: Event) -> None:
        for effect in self._machine.handle(event):
            match effect:
                case Scan() | Read():
                    self._tasks.spawn(self._ask(effect), type(effect).__name__.lower())
                case Rest(failures):
                    seconds = self._patience.retry_after(failures, self._chance.random())
                    self._rest = self._clock.call_later(seconds, lambda: self._post(Rested()))
                case KeyChanged():
                    self._news.tell(effect)
                case TellReady():
                    self._ready.set()
                case _:
                    assert_never(effect)
        if self.is_current:
            self._settled.set()

    async def _ask(self, effect: Scan | Read) -> None:
        answer: Event
        try:
            async with asyncio.timeout(self._patience.answer_s):
                match effect:
                    case Scan():
                        answer = Scanned({key: found async for key, found in self._store.scan(self.prefix)})
                    case Read(key):
                        answer = WasRead(key, await self._store.get(key))
        except (Error, TimeoutError) as error:
            log.debug("mirror could not read", extra={"prefix": self.prefix, "reason": str(error)})
            answer = ReadFailed()
        self._post(answer)
