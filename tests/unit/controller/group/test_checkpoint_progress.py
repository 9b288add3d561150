"""Progress of checkpoint groups: which member may report it, how often it is written, what segments retain for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.group.checkpoint_progress import Progress, Report
from anabranch.controller.group.consumer_sessions import Disconnected, Registered, Ticked
from anabranch.controller.group.drain_tracker import LayoutChanged
from anabranch.controller.group.group_events import (
    Event,
    GroupSaved,
    GroupSeen,
    ProgressDue,
    Progressed,
    Push,
    SaveGroup,
    SaveProgressAt,
)
from anabranch.controller.group.group_record import GroupRecord
from anabranch.controller.group.group_state import PROGRESS_MS, GroupState
from anabranch.controller.group.retention_holds import wanted
from anabranch.model.layout import Layout
from anabranch.model.position import EARLIEST, Position
from anabranch.model.reached import Reached
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.scalable import reached

AT = Reached(Position(4, 7))


class Bench:
    """A group with one member, `a`, that has both segments; every save is done when the test says so."""

    def __init__(self, stored: GroupRecord | None = None) -> None:
        self.group, self.now_ms, self.version = GroupState("life", 1, grace_ms=1_000), 10_000, 0
        self.tell(GroupSeen(stored, 0), save=True)
        self.tell(LayoutChanged(Layout.initial(2, now_ms=0)), save=True)
        self.effects = self.tell(Registered("a", 1), save=True)

    def tell(self, event: Event, *, save: bool = False) -> list[object]:
        effects = list[object](self.group.handle(event, self.now_ms))
        for effect in effects:
            if save and isinstance(effect, SaveGroup):
                self.version += 1
                effects += self.tell(GroupSaved(self.version), save=True)
        return effects

    def stored(self) -> GroupRecord:
        return GroupRecord.decode(self.group.record().encode())


def saves(effects: list[object]) -> list[SaveGroup]:
    return [effect for effect in effects if isinstance(effect, SaveGroup)]


def test_reported_progress_is_stored() -> None:
    bench = Bench()
    (save,) = saves(bench.tell(Progressed("a", Report(1, AT))))
    assert save.record.reached == {1: AT}
    assert Bench(bench.stored()).group.progress.reached == {1: AT}


def test_report_of_another_consumer_is_ignored() -> None:
    bench = Bench()
    assert bench.tell(Progressed("b", Report(1, AT))) == []
    assert bench.tell(Progressed("a", Report(9, AT))) == []
    assert bench.tell(Progressed("b", Report(1, completed=True))) == []
    bench.tell(Registered("b", 2), save=True)
    (leaving,) = bench.group.assignment.awaited()
    assert saves(bench.tell(Progressed("a", Report(leaving.segment_id, AT))))  # revoked, and not released yet
    assert bench.tell(Progressed("b", Report(leaving.segment_id, Reached(Position(9, 9))))) == []
    assert bench.group.progress.reached == {leaving.segment_id: AT}


def test_frequent_progress_is_written_rarely_and_completely() -> None:
    bench = Bench()
    assert len(saves(bench.tell(Progressed("a", Report(0, AT)), save=True))) == 1
    due_ms = bench.now_ms + PROGRESS_MS
    bench.now_ms += 10
    later = [Reached(Position(4, 8 + number)) for number in range(50)]
    asked = [effect for one in later for effect in bench.tell(Progressed("a", Report(1, one)), save=True)]
    assert asked == [SaveProgressAt(due_ms)]
    assert bench.group.saves_due == 1
    bench.now_ms = due_ms
    (save,) = saves(bench.tell(ProgressDue(), save=True))
    assert save.record.reached == {0: AT, 1: later[-1]}
    assert bench.group.saves_due == 0
    assert bench.tell(Progressed("a", Report(1, later[-1]))) == []  # nothing new


def test_progress_is_written_with_other_changes() -> None:
    bench = Bench()
    bench.tell(Progressed("a", Report(0, AT)), save=True)
    bench.tell(Progressed("a", Report(1, AT)), save=True)
    (save,) = saves(bench.tell(Registered("b", 2)))
    assert save.record.reached == {0: AT, 1: AT}
    assert bench.tell(ProgressDue()) == []


def test_report_of_a_closed_member_is_ignored() -> None:
    bench = Bench()
    bench.tell(Progressed("a", Report(0, AT)), save=True)
    bench.tell(Disconnected(1), save=True)
    bench.now_ms += 1_000
    bench.tell(Ticked(), save=True)
    given = bench.tell(Registered("b", 2), save=True)
    assert any(isinstance(one, Push) for one in given)
    bench.tell(Progressed("b", Report(0, AT)), save=True)
    bench.tell(Progressed("c", Report(0, Reached(Position(99, 0)))), save=True)
    assert bench.group.progress.reached == {0: AT}


class TestHolds:
    def test_group_without_reports_holds_nothing(self) -> None:
        assert wanted(Bench().group, [0, 1]) == {}

    def test_reporting_group_holds_unread_entries_of_all_segments(self) -> None:
        bench = Bench()
        bench.tell(Progressed("a", Report(0, AT)), save=True)
        assert wanted(bench.group, [0, 1]) == {0: Position(4, 7), 1: EARLIEST}

    def test_incomplete_segment_is_held(self) -> None:
        assert Reached(Position(4, 7), 2, 5).passed == Position(4, 6)
        assert Reached(Position(4, 7), 4, 5).passed == Position(4, 7)
        assert Reached(Position(4, 7), since=Position(3, 9)).passed == Position(3, 9)


positions = st.builds(Position, st.integers(0, 1 << 60), st.integers(0, 1 << 60))
places = st.integers(1, 1 << 20).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size)))
reaches = st.builds(
    lambda position, place, since: Reached(position, place[0], place[1], since),
    positions,
    st.just((-1, 0)) | places,
    st.none() | positions,
)


@given(reaches)
def test_progress_survives_encoding(one: Reached) -> None:
    assert Reached.from_json(one.to_json()) == one
    assert Progress({3: one}).passed(3) == one.passed


def test_wire_omits_segments_without_progress() -> None:
    assert reached(pb.SegmentProgress(segment_id=1)) is None
