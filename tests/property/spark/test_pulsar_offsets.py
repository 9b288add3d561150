"""Offsets on the shapes of Apache Pulsar's topics: gaps between ledgers, empty ledgers, trimmed heads, loads."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.model.position import EARLIEST, Position
from anabranch.spark.offsets import advance as cuts
from anabranch.spark.offsets import offset as offsets
from anabranch.spark.offsets import partitions as plan
from anabranch.spark.offsets import pulsar_topic as shape
from anabranch.spark.offsets.advance import LostData
from anabranch.spark.offsets.offset import Offset
from anabranch.spark.offsets.pulsar_topic import Heads
from anabranch.spark.offsets.topic_view import LedgerSum
from tests.support.models.pulsar_topic_model import PaperPulsarTopic

changes = st.one_of(
    st.integers(1, 4).map(lambda count: ("publish", count)),
    st.integers(1, 9).map(lambda gap: ("roll", gap)),
    st.integers(1, 9).map(lambda gap: ("reload", gap)),
    st.integers(1, 3).map(lambda count: ("trim", count)),
    st.integers(0, 3).map(lambda limit: ("batch", limit)),
)
histories = st.lists(changes, max_size=30)


class Query:
    """A streaming query: it keeps the end of each batch as text."""

    def __init__(self, topic: PaperPulsarTopic) -> None:
        self.topic = topic
        self.log = [self._text({topic.name: cuts.earliest(topic.view())})]
        self.seen: list[int] = []
        self.is_lost = False

    @staticmethod
    def _text(offset: Offset) -> str:
        return json.dumps(offsets.dump(offset))

    def batch(self, limit: int = 0) -> bool:
        """False if there is nothing for one. A loss is noted, and reading goes on behind it."""
        start, view = offsets.load(json.loads(self.log[-1])), self.topic.view()
        views = {self.topic.name: view}
        settled = {self.topic.name: cuts.settled(start[self.topic.name], view, self._note)}
        ends = {}
        for one, (begin, end) in cuts.ahead(settled, views).items():
            entries = self.topic.read(plan.Range(self.topic.name, 0, begin, end, self.topic.name))
            ends[one] = end if not limit or len(entries) <= limit else self._after(entries[limit - 1])
        reached = cuts.advanced(settled, views, ends)
        if not ends and not cuts.has_passed(start, reached):
            return False
        for planned in plan.ranges(start, reached):
            self.seen += self.topic.read(planned)
        self.log.append(self._text(reached))
        return True

    def catch_up(self) -> None:
        for _ in range(1_000):
            if not self.batch():
                return
        raise AssertionError("batches without an end")

    def _note(self, error: Exception) -> None:
        assert isinstance(error, LostData)
        self.is_lost = True

    def _after(self, number: int) -> Position:
        for ledger, entries in self.topic.ledgers.items():
            if number in entries:
                return Position(ledger, entries.index(number) + 1)
        raise AssertionError(f"{number} is not there")


def apply(topic: PaperPulsarTopic, what: str, how: int) -> None:
    {"publish": topic.publish, "roll": topic.roll, "reload": topic.reload, "trim": topic.trim}[what](how)


@settings(max_examples=500)
@given(st.booleans(), histories)
@example(True, [("publish", 1), ("roll", 1), ("batch", 0), ("publish", 1), ("trim", 1), ("publish", 1)])
@example(False, [("publish", 2), ("batch", 0), ("publish", 1), ("reload", 3), ("trim", 1), ("publish", 1)])
def test_every_entry_once_and_each_loss_is_noticed(has_admin: bool, history: list[tuple[str, int]]) -> None:
    topic = PaperPulsarTopic(has_admin)
    query = Query(topic)
    for what, how in history:
        if what == "batch":
            query.batch(how)
        else:
            apply(topic, what, how)
    query.catch_up()
    assert query.seen == sorted(set(query.seen)), "twice, or out of order"
    missing = set(range(topic.published)) - set(query.seen)
    assert missing <= topic.deleted, "left out although it is there"
    assert not missing or query.is_lost, "a loss was not reported"


@settings(max_examples=500)
@given(histories)
@example([("publish", 1), ("reload", 2), ("trim", 1), ("publish", 1), ("roll", 1), ("trim", 1), ("publish", 1)])
def test_with_ledger_lists_a_query_that_keeps_up_never_takes_a_rolled_ledger_for_a_loss(
    history: list[tuple[str, int]],
) -> None:
    """It sees the topic after every change. Loads of a topic without entries are another test."""
    topic = PaperPulsarTopic(has_admin=True)
    query = Query(topic)
    for what, how in history:
        if what == "reload" and not any(topic.ledgers.values()):
            continue
        apply(topic, what if what != "batch" else "publish", max(how, 1))
        query.catch_up()
    assert not query.is_lost
    assert query.seen == list(range(topic.published))


def test_a_topic_without_entries_that_is_loaded_twice_cannot_be_told_from_one_that_lost_them() -> None:
    topic = PaperPulsarTopic(has_admin=True)
    query = Query(topic)
    topic.reload(1)
    query.catch_up()
    assert query.is_lost


@pytest.mark.parametrize("has_admin", [True, False])
def test_a_ledger_that_was_seen_closed_is_known_to_be_read(has_admin: bool) -> None:
    """It is deleted, and the next ledger has entries, before the query looks again."""
    topic = PaperPulsarTopic(has_admin)
    query = Query(topic)
    topic.publish(2)
    query.catch_up()
    topic.roll(1)
    query.catch_up()
    topic.publish(1)
    topic.trim(1)
    query.catch_up()
    assert query.is_lost == (not has_admin)
    assert query.seen == [0, 1, 2]


def test_the_beginning_of_an_empty_topic_is_its_end() -> None:
    view = PaperPulsarTopic(has_admin=False).view()
    assert cuts.earliest(view) == cuts.latest(view)


@pytest.mark.parametrize(
    ("heads", "ledgers", "expected"),
    [
        (Heads(Position(5, 0), EARLIEST, Position(5, -1)), (), ("5:0", "5:0", "5:-1")),
        (Heads(Position(5, 0), Position(5, 7), Position(5, 7)), (), ("5:0", "5:8", "5:-1")),
        (Heads(Position(5, 0), EARLIEST, Position(5, 7)), (), ("5:8", "5:8", "5:7")),
        (Heads(Position(5, 0), EARLIEST, Position(5, 7)), (LedgerSum(9, 0, None, 0),), ("9:0", "5:8", "5:7")),
        (Heads(Position(9, 0), Position(12, 0), Position(12, 0)), (), ("9:0", "12:1", "9:-1")),
    ],
    ids=["empty", "one ledger", "all deleted", "all deleted, listed", "head deleted"],
)
def test_bounds(heads: Heads, ledgers: tuple[LedgerSum, ...], expected: tuple[str, str, str]) -> None:
    assert tuple(str(one) for one in shape.bounds(heads, ledgers)) == expected


sums = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=5).map(
    lambda some: tuple(
        LedgerSum(sum(gap for gap, _ in some[: i + 1]), entries, None, entries * 10)
        for i, (_, entries) in enumerate(some)
    )
)
places = st.builds(Position, st.integers(0, 22), st.integers(0, 7))


def entries_of(ledgers: tuple[LedgerSum, ...]) -> list[Position]:
    return [Position(one.ledger, entry) for one in ledgers for entry in range(one.entries)]


@given(sums, places, places)
def test_entries_and_bytes_between_positions(ledgers: tuple[LedgerSum, ...], start: Position, end: Position) -> None:
    inside = [at for at in entries_of(ledgers) if start <= at < end]
    assert shape.entries_between(ledgers, start, end) == len(inside)
    assert shape.bytes_between(ledgers, start, end) == 10 * len(inside)


@given(sums, places, st.integers(0, 20))
def test_a_number_of_entries_ahead(ledgers: tuple[LedgerSum, ...], start: Position, count: int) -> None:
    reached = shape.after_entries(ledgers, start, count)
    ahead = [at for at in entries_of(ledgers) if at >= start]
    assert [at for at in ahead if at < reached] == ahead[:count]


def test_internal_stats_list_the_open_ledger_without_its_entries() -> None:
    stats = {
        "ledgers": [{"ledgerId": 4, "entries": 3, "size": 30}, {"ledgerId": 9, "entries": 0, "size": 0}],
        "currentLedgerEntries": 2,
        "currentLedgerSize": 22,
    }
    found = shape.read_ledgers(stats)
    assert found == (LedgerSum(4, 3, None, 30), LedgerSum(9, 2, None, 22))
    assert shape.grown(found, Position(9, 3)) == (LedgerSum(4, 3, None, 30), LedgerSum(9, 4, None, 44))
