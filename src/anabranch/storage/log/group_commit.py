"""Group commit as a state machine: which batches are gathered, which form the next group, and where it is written.

While one group is written, the next one gathers. The sync of the previous group is therefore the batching window, and
one sync is paid per group, independent of the number of ledgers in it. No I/O, no clock, no threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.runtime.disk import Buffer
from anabranch.storage.interface import AppendSink, StoredEntry
from anabranch.storage.ledger.record_format import HEADER_BYTES
from anabranch.storage.ledger.sparse_index import IndexPoint

LOG_START = 4096
"""Offset of the first group in a log file; the file head has the page before it."""

FIRST_LOG_BYTES = 256 << 10
DIRECT_LEDGERS_MAX = 2
JOIN_BELOW_BYTES = 4096
"""Records smaller than this on average are joined by copying: one large write is cheaper than many small vectors."""


class Batch:
    """One ledger's part of a group: consecutive records of its file."""

    __slots__ = (
        "ledger_id",
        "offset",
        "sink",
        "entries",
        "contexts",
        "pieces",
        "points",
        "points_before",
        "origin",
        "end",
        "messages",
        "bytes",
        "last_entry_id",
    )

    def __init__(self, ledger_id: int, offset: int, points_before: int, origin: IndexPoint | None = None) -> None:
        self.ledger_id = ledger_id
        self.offset = offset
        self.sink: AppendSink | None = None  # notified of the outcome; set with the first entry
        self.entries: list[StoredEntry] = []
        self.contexts: list[Any] = []  # one for each entry
        self.pieces: list[Buffer] = []
        self.points: list[IndexPoint] = []
        self.points_before = points_before  # number of index points of the ledger before this batch
        self.origin = origin  # the ledger's first index point, if it exists already
        self.end = offset  # these four are totals of the ledger including this batch, set when it is closed
        self.messages = 0
        self.bytes = 0
        self.last_entry_id = -1

    @property
    def size(self) -> int:
        return self.end - self.offset

    def compact(self) -> None:
        """Join small records into one piece."""
        if len(self.pieces) > 1 and self.size < JOIN_BELOW_BYTES * len(self.entries):
            self.pieces = [b"".join(self.pieces)]


@dataclass(frozen=True, slots=True)
class Direct:
    """A batch written directly to its ledger file, after older batches of the ledger that are not in the file yet."""

    batch: Batch
    carried: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group: the work of the log thread."""

    logged: tuple[Batch, ...]
    direct: tuple[Direct, ...]
    log_number: int
    log_place: int
    log_bytes: int  # head and records; 0 if the log is not written
    group_number: int
    rolls: bool  # log_number is a new file
    is_checkpoint: bool  # … and the old log files should be freed: the last one is full, or a checkpoint was wanted

    @property
    def batches(self) -> list[Batch]:
        return [*self.logged, *(direct.batch for direct in self.direct)]


def choose_direct(batches: list[Batch], direct_bytes_min: int) -> set[int]:
    """Ledgers whose batch is large enough to bypass the log and go to their own file: at most two, the largest."""
    big = [batch for batch in batches if batch.size >= direct_bytes_min]
    big.sort(key=lambda batch: batch.size, reverse=True)
    return {batch.ledger_id for batch in big[:DIRECT_LEDGERS_MAX]}


class GroupCommit:
    def __init__(self, log_bytes_max: int, direct_bytes_min: int, log_number: int = 1) -> None:
        self._log_bytes_max = log_bytes_max
        self._direct_bytes_min = direct_bytes_min
        self.gathered: list[Batch] = []
        self._log_number = log_number
        self._log_place = LOG_START
        self._group_number = 0
        self._is_spare_asked = False
        self._is_spare_ready = False
        self._is_checkpoint_wanted = False
        self.in_flight: GroupPlan | None = None

    @property
    def log_number(self) -> int:
        return self._log_number

    @property
    def log_place(self) -> int:
        return self._log_place

    @property
    def has_work(self) -> bool:
        return bool(self.gathered)

    def gather(self, batch: Batch) -> None:
        self.gathered.append(batch)

    def start(self, claim: Callable[[int], tuple[Batch, ...] | None]) -> GroupPlan:
        """Form a group of everything gathered.

        `claim` returns a ledger's unwritten batches, or None if it cannot be direct.
        """
        assert self.in_flight is None, "one group at a time"
        logged: list[Batch] = []
        direct: list[Direct] = []
        wanted = choose_direct(self.gathered, self._direct_bytes_min)
        for batch in self.gathered:
            carried = claim(batch.ledger_id) if batch.ledger_id in wanted else None
            if carried is None:
                logged.append(batch)
            else:
                direct.append(Direct(batch, carried))
        records = sum(batch.size for batch in logged)
        log_bytes = HEADER_BYTES + records if records else 0
        is_past_end = self._log_place + log_bytes > self._log_bytes_max
        is_early = self._is_spare_ready and (self._log_number == 1 or self._is_checkpoint_wanted)
        rolls = bool(log_bytes) and self._log_place > LOG_START and (is_past_end or is_early)
        plan = GroupPlan(
            logged=tuple(logged),
            direct=tuple(direct),
            log_number=self._log_number + 1 if rolls else self._log_number,
            log_place=LOG_START if rolls else self._log_place,
            log_bytes=log_bytes,
            group_number=0 if rolls else self._group_number,
            rolls=rolls,
            is_checkpoint=rolls and (is_past_end or self._is_checkpoint_wanted),
        )
        self.gathered = []
        self.in_flight = plan
        return plan

    def finish(self) -> GroupPlan:
        """The group is durable."""
        plan = self._take_in_flight()
        if plan.log_bytes:
            self._log_number = plan.log_number
            self._log_place = plan.log_place + plan.log_bytes
            self._group_number = plan.group_number + 1
        if plan.rolls:
            self._is_spare_asked = self._is_spare_ready = self._is_checkpoint_wanted = False
        return plan

    def asks_for_spare(self) -> bool:
        """True once per log file, when the next one should be prepared.

        For the first file that is early, see `spare_ready`.
        """
        share = min(FIRST_LOG_BYTES, self._log_bytes_max // 2) if self._log_number == 1 else self._log_bytes_max // 2
        is_due = self._log_place >= share or self._is_checkpoint_wanted
        if self._is_spare_asked or not is_due:
            return False
        self._is_spare_asked = True
        return True

    def spare_ready(self) -> None:
        """A spare file is ready, so the log can roll without creating a file.

        The first log file is not preallocated, because opening must be fast; the spare replaces it with the next group.
        """
        self._is_spare_ready = True

    def want_checkpoint(self) -> None:
        """Roll the log and checkpoint before the file is full, with the first group after a spare file is ready.

        Without a spare the log does not roll: on a full device the preallocated rest of the file still takes groups.
        """
        self._is_checkpoint_wanted = True

    def abort(self) -> tuple[GroupPlan, list[Batch]]:
        """The group failed: its place in the log is reused. Batches gathered meanwhile fail too."""
        gathered, self.gathered = self.gathered, []
        return self._take_in_flight(), gathered

    def _take_in_flight(self) -> GroupPlan:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None, "no group in flight"
        return plan

    def drain(self) -> list[Batch]:
        """Remove and return the batches that are in no group."""
        gathered, self.gathered = self.gathered, []
        return gathered
