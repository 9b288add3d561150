"""Repeated seeks of an ordered subscription while consumers join, leave, hang and crash, segments split and merge, and
leaders change.

For each key the deliveries continue in the old order, then start again from the seek position, in order. A child's
message never comes before its parent's, the old order never returns, and nothing is skipped. A seek that was answered
has happened for every key.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import pytest

from anabranch.controller.topic.subscription_events import MoveCall
from anabranch.model.errors import Error
from tests.simulation.test_controller_groups import GroupLife
from tests.simulation.test_controller_operations import SEEDS
from tests.support.simulation.controller import LINES_SHOWN, Broken
from tests.support.simulation.metadata_processes import seeds

SOUGHT = "first"


@dataclass
class Rewind:
    publish_ms: int
    seen_before: dict[str, int]  # by key: how many deliveries there were when it was asked for
    is_done: bool = False


@dataclass
class Path:
    """Of one key: which seeks its deliveries have followed so far."""

    last: int = -1
    used: int = -1
    got: list[int] = field(default_factory=list)


class RewindLife(GroupLife):
    def __init__(self, seed: int) -> None:
        self.rewind_count: dict[str, Rewind] = {}  # in the order they were asked for
        self.paths: dict[str, Path] = {}
        super().__init__(seed)

    def collect(self) -> None:
        """Everything is kept, so that every seek finds what it asks for."""

    def act(self) -> None:
        if self.is_chaotic and self.chance.random() < 0.5 and SOUGHT in self.from_then:
            call = MoveCall(self.new_id("rewind"), SOUGHT, self.chance.choice([0, 0, max(0, self.now_ms - 700)]))
            assert call.publish_ms is not None
            lengths = {key: len(path.got) for key, path in self.paths.items()}
            self.rewind_count[call.operation_id] = Rewind(call.publish_ms, lengths)
            self.ask(call)
        super().act()

    def replied(self, operation_id: str, error: Error | None) -> None:
        super().replied(operation_id, error)
        if error is None and operation_id in self.rewind_count:
            self.rewind_count[operation_id].is_done = True

    def target(self, key: str, publish_ms: int) -> int | None:
        """The first message of the key that was published then or later."""
        found = [
            segment.entries[index].sequence_id
            for segment in self.shelf.segments.values()
            for index in range(
                bisect_left(segment.entries, publish_ms, key=lambda one: one.publish_ms), len(segment.entries)
            )
            if segment.entries[index].producer == key
        ]
        return min(found, default=None)

    def deliver(self, name: str, key: str, sequence_id: int, segment_id: int) -> None:
        if name != SOUGHT:
            super().deliver(name, key, sequence_id, segment_id)
            return
        path = self.paths.setdefault(key, Path())
        if sequence_id != path.last + 1:
            later = [n for n, _ in enumerate(self.rewind_count) if n > path.used]
            asked = list(self.rewind_count.values())
            follows = [n for n in later if self.target(key, asked[n].publish_ms) == sequence_id]
            self.must(
                bool(follows), f"{key}:{sequence_id} from segment {segment_id} after {key}:{path.last}: no seek says so"
            )
            path.used = follows[0]
        path.last = sequence_id
        path.got.append(sequence_id)
        self.seen[name][key].append(sequence_id)

    def check_complete(self) -> None:
        is_known = self.from_then.pop(SOUGHT, None) is not None  # a seek may also skip unread messages
        super().check_complete()
        for key, last in self.sent_until.items() if is_known else ():
            read = self.paths.get(key, Path()).last
            self.must(read >= last, f"{key} was read to {read}, {last} was confirmed")
        asked = list(self.rewind_count.values())
        for number, rewind in enumerate(asked):
            is_last_word = all(later.publish_ms <= rewind.publish_ms for later in asked[number:])
            for key, path in self.paths.items():
                first = self.target(key, rewind.publish_ms)
                if rewind.is_done and is_last_word and first is not None:
                    after = path.got[rewind.seen_before.get(key, 0) :]
                    self.must(first in after, f"{key}:{first} was not read again after the seek to {rewind.publish_ms}")


def run_life(seed: int) -> RewindLife:
    life = RewindLife(seed)
    try:
        life.live()
    except Exception as error:
        shown = "\n".join(life.lines[-LINES_SHOWN:])
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, Broken))
    return life


@pytest.mark.parametrize("part", seeds(max(1, SEEDS // 20), 5))
def test_rewinds_keep_every_key_in_order(part: range) -> None:
    for seed in part:
        run_life(seed)


def test_rewinds_simulation_completes_seeks() -> None:
    """Seeks complete while messages are read and leaders change."""
    lives = [run_life(seed) for seed in range(12)]
    done = [rewind for life in lives for rewind in life.rewind_count.values() if rewind.is_done]
    assert len(done) > 10
    assert sum(path.used >= 0 for life in lives for path in life.paths.values()) > 20
    assert sum(len(life.leaders) for life in lives) > 100
