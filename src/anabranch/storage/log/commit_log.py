"""The files of the commit log, and the writing of one group as planned by `group_commit`.

Used on the log thread only, except `retire` and `prepare`, which run on the thread of the checkpoints. The two threads
share only the name of the spare file, and renames are atomic. Log files are preallocated and recycled, so that a sync
has no file metadata to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.runtime.disk import Buffer, Disk, File
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.ledger.record_format import HEADER_BYTES, LOG_MAGIC, encode_file_head, encode_group_head
from anabranch.storage.ledger.sparse_index import encode_point, place_of_point
from anabranch.storage.log.append_gate import is_full
from anabranch.storage.log.group_commit import LOG_START, Batch, GroupPlan

SPARE, DRAFT = "spare.log", "draft"
AHEAD_BYTES = 256 << 10
PREPARE_BYTES = 1 << 20


def log_name(number: int) -> str:
    return f"{number:08d}.log"


def log_number(name: str) -> int | None:
    stem, _, ext = name.partition(".")
    return int(stem) if ext == "log" and stem.isdigit() else None


def write_points(files: LedgerFiles, batches: Sequence[Batch]) -> None:
    """Write the index points of consecutive batches of one ledger.

    They are not synced, because an index can be rebuilt.

    The first point is written together with the second one, so that small ledgers have no index file.
    """
    points = [point for batch in batches for point in batch.points]
    number = batches[0].points_before
    if points and number == 1 and batches[0].origin is not None:
        points.insert(0, batches[0].origin)
        number = 0
    if len(points) > 1 or (points and number):
        files.write_index(batches[0].ledger_id, b"".join(map(encode_point, points)), place_of_point(number))


class CommitLog:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        files: LedgerFiles,
        *,
        bytes_max: int,
        is_synced: bool,
        pause_at: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._bytes_max = bytes_max
        self._is_synced = is_synced
        self._pause_at = pause_at
        self._file: File | None = None
        self._number = 0
        self._committed = 0  # the file that holds the last durable group
        self._solid: set[int] = set()  # files whose blocks were all written before use
        self._written_end = 0  # up to where blocks of the current file were ever written

    def commit(self, plan: GroupPlan) -> None:
        """Everything in the plan is durable when this returns. After an error nothing of it counts."""
        self._pause_at("group-begun")
        for direct in plan.direct:
            batch, pieces = direct.batch, []
            for part in (*direct.carried, batch):
                part.compact()
                pieces += part.pieces
            offset = direct.carried[0].offset if direct.carried else batch.offset
            self._files.write(batch.ledger_id, pieces, offset, synced=self._is_synced)
            write_points(self._files, [*direct.carried, batch])
        self._pause_at("shares-written")
        if plan.log_bytes:
            self._write_log(plan)
            self._committed = plan.log_number
        self._pause_at("group-synced")

    def _write_log(self, plan: GroupPlan) -> None:
        if plan.log_number != self._number:
            self._open(plan.log_number)
        assert self._file is not None
        pieces: list[Buffer] = [b""]
        records = 0
        for batch in plan.logged:
            batch.compact()
            pieces += batch.pieces
            records += len(batch.entries)
        pieces[0] = encode_group_head(
            plan.group_number, plan.log_place, records, plan.log_bytes - HEADER_BYTES, plan.log_number
        )
        end = plan.log_place + plan.log_bytes
        if end > self._written_end:
            # The first sync of blocks that are allocated but never written costs a journal commit; pay it for many
            # groups at once.
            ahead = min(AHEAD_BYTES, self._bytes_max - end) if plan.log_bytes < AHEAD_BYTES else 0
            if ahead > 0:
                pieces.append(bytes(ahead))
            self._written_end = end + max(ahead, 0)
        self._file.pwritev(pieces, plan.log_place, synced=self._is_synced)

    def _open(self, number: int) -> None:
        """Start a new file, a recycled one if possible. Its name and head are durable before its first group.

        The old file stays open until then: if there is no room for a new one, a smaller group may still fit into it.
        """
        path = f"{self._directory}/{log_name(number)}"
        if number == self._committed:
            self._use(
                self._disk.open(path), number, self._bytes_max
            )  # return to it from a new one that could not be started
            return
        if not self._disk.exists(path):
            try:
                self._disk.rename(f"{self._directory}/{SPARE}", path)
                self._solid.add(number)
            except FileNotFoundError:
                pass  # no spare yet; a new file is created below
        file = self._disk.open(path, create=True)
        try:
            is_allocated = file.size() >= self._bytes_max or self._allocate(file)
            file.pwritev([encode_file_head(LOG_MAGIC, number).ljust(LOG_START, b"\0")], 0)
            file.fdatasync()
            self._disk.fsync_dir(self._directory)
        except BaseException:
            file.close()
            raise
        # In a file that must grow, nothing is written ahead, because the room may be just enough for the groups.
        self._use(file, number, self._bytes_max if number in self._solid or not is_allocated else 0)

    def _use(self, file: File, number: int, written_end: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._number, self._written_end = file, number, written_end

    def _allocate(self, file: File) -> bool:
        """Preallocate if the device has room for it; a nearly full device is filled write by write."""
        try:
            file.allocate(self._bytes_max)
        except OSError as error:
            if not is_full(error):
                raise
            file.truncate(0)
            return False
        return True

    def cut(self, plan: GroupPlan) -> None:
        """Make the remains of a failed group in the log unreadable; the next group is written at the same offset.

        Ledger files are never truncated, because a stopped owner that wakes up must not remove what its successor has
        recovered. The remains of a failed direct write lie after the end at which the ledger is sealed.
        """
        if plan.log_bytes and self._file is not None and self._number == plan.log_number:
            self._file.pwritev([bytes(HEADER_BYTES)], plan.log_place)

    def retire(self, number_max: int) -> None:
        """Files up to this number are no longer needed: keep one as a spare, delete the others."""
        for name in self._disk.list(self._directory):
            number = log_number(name)
            if number is None or number > number_max:
                continue
            path = f"{self._directory}/{name}"
            if number in self._solid and not self._disk.exists(f"{self._directory}/{SPARE}"):
                self._disk.rename(path, f"{self._directory}/{SPARE}")
            else:
                self._disk.unlink(path)
            self._solid.discard(number)

    def prepare(self, place: int) -> int | None:
        """One step of preparing a spare file with all blocks written, so that syncing it never waits for the file
        system journal.

        Returns where the next step continues, or None when the spare is ready. Steps are small, because the log is
        synced between them.
        """
        if self._disk.exists(f"{self._directory}/{SPARE}"):
            return None
        draft = f"{self._directory}/{DRAFT}"
        file = self._disk.open(draft, create=True)
        try:
            if not place:
                file.allocate(self._bytes_max)
            size = min(PREPARE_BYTES, self._bytes_max - place)
            file.pwritev([bytes(size)], place)
            file.fdatasync()
        except OSError:
            self._disk.unlink(draft)
            raise
        finally:
            file.close()
        if place + size < self._bytes_max:
            return place + size
        self._disk.rename(draft, f"{self._directory}/{SPARE}")
        return None

    def remove(self) -> None:
        """Delete the log after a clean close."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for name in self._disk.list(self._directory):
            self._disk.unlink(f"{self._directory}/{name}")
        self._disk.remove_dir(self._directory)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
