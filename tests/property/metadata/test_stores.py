"""Any sequence of operations gives the same answers on every backend and in a simple model."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.metadata.interface import ABSENT, ANY, KeyMissing, MetadataStore, Rule, Session, VersionMismatch
from anabranch.metadata.memory.store import MemoryStore
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock

PARTS = st.sampled_from(["a", "b", "a-", "a0", "a.", "é", "日", "%2F", "\x01", "~"])
KEYS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
EXPECTED = st.sampled_from(["absent", "any", "current", "stale"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, EXPECTED, st.booleans()),
        st.tuples(st.just("delete"), KEYS, EXPECTED.filter(lambda e: e != "absent"), st.just(False)),
        st.tuples(st.just("end session"), st.just("/"), st.just("any"), st.just(False)),
    ),
    max_size=40,
)
Operation = tuple[str, str, str, bool]
State = dict[str, tuple[bytes, bool]]


class Runner:
    """Applies operations to one store; versions are not part of the result, so that stores compare equal."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._versions: dict[str, int] = {}
        self._stale: dict[str, int] = {}
        self._session: Session | None = None

    async def run(self, operations: list[Operation]) -> tuple[list[str], State, dict[str, list[str]]]:
        outcomes = [await self._apply(number, *operation) for number, operation in enumerate(operations)]
        state = {key: (found.value, found.ephemeral) async for key, found in self._store.scan("/")}
        parents = {"/", *("/".join(key.split("/")[:depth]) for key in state for depth in range(2, 6))}
        return outcomes, state, {parent: await self._store.children(parent) for parent in sorted(parents)}

    async def _apply(self, number: int, kind: str, key: str, expected: str, ephemeral: bool) -> str:
        if kind == "end session":
            if self._session is not None:
                await self._session.close()
                self._session = None
            return "ended"
        rule: Rule | int = {"absent": ABSENT, "any": ANY}.get(expected) or (
            self._versions.get(key, 1 << 40) if expected == "current" else self._stale.get(key, 1 << 41)
        )
        try:
            if kind == "delete":
                await self._store.delete(key, expected=rule)
                self._stale[key] = self._versions.pop(key, 1 << 41)
                return "deleted"
            if ephemeral and self._session is None:
                self._session = await self._store.open_session(60_000)
            session = self._session if ephemeral else None
            version = await self._store.put(key, str(number).encode(), expected=rule, session=session)
            self._stale[key] = self._versions.get(key, 1 << 41)
            self._versions[key] = version
        except (VersionMismatch, KeyMissing) as error:
            return type(error).__name__
        return "written"


def model(operations: list[Operation]) -> State:
    """The state after `operations`, computed with a dictionary."""
    state: State = {}
    for number, (kind, key, expected, ephemeral) in enumerate(operations):
        fits = {"absent": key not in state, "any": True, "current": key in state, "stale": False}[expected]
        if kind == "end session":
            state = {k: v for k, v in state.items() if not v[1]}
        elif kind == "put" and fits:
            state[key] = (str(number).encode(), ephemeral)
        elif kind == "delete" and fits:
            state.pop(key, None)
    return state


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_all_stores_agree_with_the_model(operations: list[Operation]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with MemoryStore(SystemClock()) as memory, SqliteStore(Path(folder), SystemClock()) as sqlite:
                one, two = await Runner(memory).run(operations), await Runner(sqlite).run(operations)
                assert one == two
                assert one[1] == model(operations)

    asyncio.run(check())
