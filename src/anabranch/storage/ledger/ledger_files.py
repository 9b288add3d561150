"""Paths of ledger files, the open ones among them, writing and syncing. Thread-safe; entries are opaque here.

`DATA/ledgers/<xx>/<id>.ledger` and `.index`, named by ledger id only. Open files are leased: a file is closed only when
it has no user and other files were used more recently.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from anabranch.runtime.disk import Buffer, Disk, File
from anabranch.storage.ledger.record_format import FILE_HEAD_BYTES, LEDGER_MAGIC, encode_file_head
from anabranch.storage.ledger.sparse_index import encode_index_head

SYNC_ALL_FROM = 32
LEDGER_EXTENSION = ".ledger"
LEDGER_START = FILE_HEAD_BYTES
"""Offset of entry 0."""


class _Lease:
    __slots__ = ("file", "users", "is_dropped")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False


class LedgerFiles:
    def __init__(self, disk: Disk, root: str, open_files_max: int) -> None:
        self._disk = disk
        self._root = root
        self._open_max = open_files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Lease] = OrderedDict()
        self._unnamed: set[str] = set()  # created, but their directory entry is not synced yet

    def directory(self, ledger_id: int) -> str:
        return f"{self._root}/ledgers/{ledger_id & 0xFF:02x}"

    def path(self, ledger_id: int) -> str:
        return f"{self.directory(ledger_id)}/{ledger_id}{LEDGER_EXTENSION}"

    def index_path(self, ledger_id: int) -> str:
        return f"{self.directory(ledger_id)}/{ledger_id}.index"

    def highest_id(self) -> int:
        """The highest id of all ledgers that have a file here, written by any broker; 0 if there is none."""
        found = 0
        for number in range(256):
            for name in self._disk.list(self.directory(number)):
                stem = name.partition(".")[0]
                if stem.isdecimal():
                    found = max(found, int(stem))
        return found

    def exists(self, ledger_id: int) -> bool:
        """Looks for the path, because another broker may have deleted a file that is still open here."""
        return self._disk.exists(self.path(ledger_id))

    @contextmanager
    def lease(self, path: str, *, create: bool = False) -> Iterator[File]:
        """The open file, for the duration of the block. FileNotFoundError unless `create`."""
        with self._lock:
            lease = self._open.get(path)
            if lease is None:
                lease = self._open[path] = _Lease(self._open_file(path, create))
                lease.users += 1
                self._trim()
            else:
                lease.users += 1
                self._open.move_to_end(path)
        try:
            yield lease.file
        finally:
            with self._lock:
                lease.users -= 1
                if lease.is_dropped and not lease.users:
                    lease.file.close()

    def read_resident(self, ledger_id: int, into: memoryview, offset: int) -> int:
        """Read from the page cache on the event loop, without waiting. Returns the number of bytes.

        Returns 0 if the file is not open or another thread holds the lock. The lock keeps the file open during the
        read.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            path = self.path(ledger_id)
            lease = self._open.get(path)
            if lease is None:
                return 0
            self._open.move_to_end(path)
            return lease.file.read_resident(into, offset)
        finally:
            self._lock.release()

    def _open_file(self, path: str, create: bool) -> File:
        try:
            return self._disk.open(path)
        except FileNotFoundError:
            if not create:
                raise
        try:
            file = self._disk.open(path, create=True)
        except FileNotFoundError:  # the directory was removed
            self._disk.make_dir(path.rpartition("/")[0])
            self._disk.fsync_dir(f"{self._root}/ledgers")
            file = self._disk.open(path, create=True)
        if path.endswith(LEDGER_EXTENSION):  # an index can be rebuilt, so its name need not be durable
            self._unnamed.add(path)
        return file

    def _trim(self) -> None:
        for path in [path for path, lease in self._open.items() if not lease.users]:
            if len(self._open) <= self._open_max:
                return
            self._open.pop(path).file.close()

    def write(self, ledger_id: int, pieces: Sequence[Buffer], offset: int, *, synced: bool = False) -> None:
        """Write records at their offset, and the file head together with the first one.

        With `synced` these records and the file's name are durable when this returns; earlier unsynced writes may need
        `sync`.
        """
        path = self.path(ledger_id)
        with self.lease(path, create=True) as file:
            if offset == LEDGER_START:
                pieces, offset = [encode_file_head(LEDGER_MAGIC, ledger_id), *pieces], 0
            file.pwritev(pieces, offset, synced=synced)
        if synced:
            self.sync_names((ledger_id,))

    def write_index(self, ledger_id: int, points: bytes, place: int) -> None:
        with self.lease(self.index_path(ledger_id), create=True) as file:
            if place == FILE_HEAD_BYTES:
                points, place = encode_index_head(ledger_id) + points, 0
            file.pwritev([points], place)

    def sync(self, ledger_id: int) -> None:
        """Everything written to this ledger so far, and its file's name, is durable when this returns."""
        path = self.path(ledger_id)
        with self.lease(path) as file:
            file.fdatasync()
        if path in self._unnamed:
            self._disk.fsync_dir(self.directory(ledger_id))
            self._unnamed.discard(path)

    def sync_names(self, ledger_ids: Collection[int]) -> None:
        """Make the names of these files durable, without syncing their content."""
        for path, directory in [(self.path(number), self.directory(number)) for number in ledger_ids]:
            if path in self._unnamed:
                self._disk.fsync_dir(directory)
                self._unnamed.discard(path)

    def sync_many(self, ledger_ids: Collection[int]) -> None:
        """`sync` of several ledgers. Many files are synced with one call, because each would cost a journal commit."""
        if len(ledger_ids) >= SYNC_ALL_FROM:
            unnamed = list(self._unnamed)
            self._disk.sync_all(self._root)
            self._unnamed.difference_update(unnamed)
            return
        for ledger_id in ledger_ids:
            try:
                self.sync(ledger_id)
            except FileNotFoundError:
                pass  # deleted meanwhile, so nothing of it is needed

    def delete(self, ledger_id: int) -> bool:
        for path in (self.index_path(ledger_id), self.path(ledger_id)):
            with self._lock:
                lease = self._open.pop(path, None)
                if lease is not None:
                    lease.is_dropped = True
                    if not lease.users:
                        lease.file.close()
        self._disk.unlink(self.index_path(ledger_id))
        path = self.path(ledger_id)
        self._unnamed.discard(path)
        return self._disk.unlink(path)

    def close(self) -> None:
        with self._lock:
            for lease in self._open.values():
                lease.file.close()
            self._open.clear()
