"""One set of metadata, opened any number of times: the same tests run on every kind of store.

Servers are shared by all tests of a process; each test has an empty path, prefix or directory. The fixtures are used by
`tests/integration/conftest.py`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch.metadata.interface import Change, ChangeKind, MetadataStore, Versioned, Watch
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.open import open_store
from anabranch.runtime.clock import SystemClock
from tests import services

STORES = ("memory", "sqlite", "zk", "etcd", "oxia")
PATIENCE_S = 30.0
"""How long a test waits for what must come: a busy machine is slow, a missing event never comes."""


def params(kinds: Iterable[str] = STORES) -> list[object]:
    """Kinds as parameters; the tests of one server run on one worker."""
    return [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in kinds]


class World:
    """The data; `open` makes one more independent store on it."""

    def __init__(self, kind: str, url: str, stack: AsyncExitStack) -> None:
        self.kind = kind
        self.url = url
        self._stack = stack
        self._memory: MemoryStore | None = None

    async def open(self) -> MetadataStore:
        """Closed at the end of the test, if not before."""
        return await self._stack.enter_async_context(self._make())

    async def open_beside(self) -> MetadataStore:
        """A store on other data of the same server, under a path that begins alike."""
        return await World(self.kind, f"{self.url}x", self._stack).open()

    async def open_other(self, kind: str, folder: Path) -> MetadataStore:
        """An empty store of another kind, or of the same kind elsewhere."""
        return await World(kind, fresh_url(kind, folder), self._stack).open()

    def _make(self) -> MetadataStore:
        if self.kind != "memory":
            return open_store(self.url, SystemClock())
        self._memory = MemoryStore(SystemClock(), None if self._memory is None else self._memory.data)
        return self._memory


def fresh_url(kind: str, folder: Path) -> str:
    """URL of an empty store of this kind: a directory, or a path on the shared server."""
    name = f"t{uuid.uuid4().hex[:12]}"
    match kind:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite:///{folder / name}"
        case "oxia":
            return f"{services.shared(kind).url}/default/{name}"
        case _:
            return f"{services.shared(kind).url}/{name}"


@pytest.fixture(params=params())
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(request.param, fresh_url(request.param, tmp_path), stack)


@pytest.fixture
async def store(world: World) -> MetadataStore:
    return await world.open()


async def value_of(store: MetadataStore, key: str) -> bytes | None:
    found = await store.get(key)
    return None if found is None else found.value


async def must_get(store: MetadataStore, key: str) -> Versioned:
    found = await store.get(key)
    assert found is not None, f"nothing under {key}"
    return found


async def keys_below(store: MetadataStore, prefix: str) -> list[str]:
    return [key async for key, _ in store.scan(prefix)]


async def bulk_items(store: MetadataStore, prefix: str) -> list[tuple[str, Versioned]]:
    return [item async for page in store.bulk_scan(prefix) for item in page]


async def soon(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `check` returns true."""
    clock = SystemClock()
    end = clock.monotonic() + PATIENCE_S
    while not await check():
        assert clock.monotonic() < end, "waited too long"
        await clock.sleep(0.01)


async def changes_until(watch: Watch, is_enough: Callable[[list[Change]], bool]) -> list[Change]:
    """All changes of the watch, up to the last expected one."""
    seen: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while not is_enough(seen):
            seen.append(await anext(watch))
    return seen


async def kinds_of(watch: Watch, key: str, count: int) -> list[ChangeKind]:
    """The kinds of the next `count` changes of one key; changes of other keys are ignored."""
    seen = await changes_until(watch, lambda changes: sum(change.key == key for change in changes) >= count)
    return [change.kind for change in seen if change.key == key]
