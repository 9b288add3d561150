"""Reads on the event loop against normal reads: any sizes, bounds and damage, any part of the file in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.runtime.disk import Buffer
from anabranch.storage.interface import CorruptEntry, StoredEntry
from anabranch.storage.ledger.ledger_files import LedgerFiles
from anabranch.storage.ledger.ledger_reader import LedgerReader
from anabranch.storage.ledger.record_format import HEADER_BYTES, LEDGER_MAGIC, encode_file_head, encode_header
from tests.support.in_memory.simulated_disk import SimDisk, SimFile

LEDGER = 5
Found = list[tuple[int, int, bytes]]


class PartlyInMemory(SimFile):
    upto = 0  # bytes of the file

    def read_resident(self, into: memoryview, offset: int) -> int:
        return super().read_resident(into[: max(self.upto - offset, 0)], offset)


class PartDisk(SimDisk):
    def open(self, path: str, *, create: bool = False) -> PartlyInMemory:
        file = super().open(path, create=create)
        assert isinstance(file, SimFile)
        return PartlyInMemory(file.path, self, file._node)


def plain(entries: list[StoredEntry]) -> Found:
    return [(entry.position.entry, entry.messages, bytes(entry.payload)) for entry in entries]


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=30),
    bounds=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 900)), min_size=1, max_size=40),
    flipped=st.none() | st.integers(0, 8000),
    upto=st.integers(0, 9000),
)
def test_same_entries_as_read_gives(
    sizes: list[int], bounds: list[tuple[int, int]], flipped: int | None, upto: int
) -> None:
    data = bytearray(encode_file_head(LEDGER_MAGIC, LEDGER))
    for entry, size in enumerate(sizes):
        payload = bytes([entry % 251]) * size
        data += encode_header(LEDGER, entry, len(data), entry + 1, 0, payload) + payload
    if flipped is not None and HEADER_BYTES <= flipped < len(data):
        data[flipped] ^= 4
    disk = PartDisk()
    for number in range(256):
        disk.make_dir(f"/v/ledgers/{number:02x}")
    files = LedgerFiles(disk, "/v", 8)
    pieces: list[Buffer] = [data]
    with files.lease(files.path(LEDGER), create=True) as file:
        file.pwritev(pieces, 0)
        assert isinstance(file, PartlyInMemory)
        file.upto = upto
    fast, normal = (LedgerReader(files, 1 << 20, 1024, lambda _: 0) for _ in range(2))
    first, end = 0, len(sizes)
    for entries_max, bytes_max in bounds:
        if first >= end:
            break
        found = fast.resident(LEDGER, first, end, entries_max, bytes_max)
        try:
            expected = normal.entries(LEDGER, first, end, entries_max, bytes_max, None)
        except CorruptEntry:
            assert found is None, "damage is reported by the thread's read"
            return
        if found is None:
            found = fast.entries(LEDGER, first, end, entries_max, bytes_max, None)
            assert plain(found) == plain(expected)
        else:
            assert plain(found) == plain(expected)[: len(found)], "shorter only where memory ends"
        first += len(found)
