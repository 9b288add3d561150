"""The last known value is served while the store is unavailable, and only then."""

from __future__ import annotations

import pytest

from anabranch.broker.schemas.stale_cache import AWAY_SECONDS, StaleWhileUnavailableCache
from anabranch.metadata.interface import OutcomeUnknown, StoreUnavailable
from anabranch.model.errors import NotFound
from tests.support.in_memory.topic_log import ManualClock


class Source:
    def __init__(self) -> None:
        self.value = "one"
        self.error: Exception | None = None
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.value


async def test_store_is_read_while_available() -> None:
    known, source = StaleWhileUnavailableCache[str](ManualClock()), Source()
    assert await known.recall("a", source.ask) == "one"
    source.value = "two"
    assert await known.recall("a", source.ask) == "two"
    assert source.asked == 2


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("away")])
async def test_last_value_is_served_while_store_is_unavailable(error: StoreUnavailable) -> None:
    known, source, other = StaleWhileUnavailableCache[str](ManualClock()), Source(), Source()
    await known.recall("a", source.ask)
    source.error = other.error = error
    assert await known.recall("a", source.ask) == "one"
    with pytest.raises(StoreUnavailable):
        await known.recall("b", other.ask)


async def test_store_is_not_retried_for_a_moment_after_failure() -> None:
    clock = ManualClock()
    known, source = StaleWhileUnavailableCache[str](clock), Source()
    await known.recall("a", source.ask)
    source.error = StoreUnavailable("away")
    await known.recall("a", source.ask)
    await known.recall("a", source.ask)
    assert source.asked == 2
    source.error, source.value = None, "two"
    clock.advance(AWAY_SECONDS)
    assert await known.recall("a", source.ask) == "two"


async def test_missing_value_is_dropped_from_cache() -> None:
    known, source = StaleWhileUnavailableCache[str](ManualClock()), Source()
    await known.recall("a", source.ask)
    source.error = NotFound("gone")
    with pytest.raises(NotFound):
        await known.recall("a", source.ask)
    source.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await known.recall("a", source.ask)


async def test_cache_is_bounded() -> None:
    known, source = StaleWhileUnavailableCache[str](ManualClock(), count_max=2), Source()
    for key in "abc":
        await known.recall(key, source.ask)
    assert len(known) == 2
