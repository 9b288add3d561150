"""Scanning a ledger file with damage of every kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.storage.ledger.ledger_files import LEDGER_START
from anabranch.storage.ledger.record_format import HEADER_BYTES, LEDGER_MAGIC, encode_file_head, encode_header
from anabranch.storage.ledger.record_runs import plain_run, sound_run
from anabranch.storage.ledger.record_scanner import RecordScanner
from tests.support.in_memory.simulated_disk import SimDisk

LEDGER = 9


def ledger_bytes(payloads: list[bytes]) -> bytearray:
    data = bytearray(encode_file_head(LEDGER_MAGIC, LEDGER))
    for entry, payload in enumerate(payloads):
        data += encode_header(LEDGER, entry, len(data), entry + 1, 0, payload) + payload
    return data


def walk(
    data: bytes | bytearray, *, block_bytes: int = 256, count_tail: bool = False
) -> list[tuple[int, bytes | None]]:
    disk = SimDisk()
    disk.dirs.add("/d")
    file = disk.open("/d/f", create=True)
    file.pwritev([data], 0)
    found = RecordScanner(file, LEDGER, 0, LEDGER_START, block_bytes=block_bytes, count_tail=count_tail)
    return [(slot.entry_id, None if slot.payload is None else bytes(slot.payload)) for slot in found]


PAYLOADS = [bytes([65 + number]) * (number * 37 % 300) for number in range(20)]


@given(block_bytes=st.integers(1, 3000))
def test_scan_finds_everything_with_any_block_size(block_bytes: int) -> None:
    assert walk(ledger_bytes(PAYLOADS), block_bytes=block_bytes) == list(enumerate(PAYLOADS))


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), block_bytes=st.sampled_from([50, 256, 4096]))
def test_one_flipped_byte_loses_one_entry(place: float, flip: int, block_bytes: int) -> None:
    data = ledger_bytes(PAYLOADS)
    at = LEDGER_START + int(place * (len(data) - LEDGER_START))
    data[at] ^= flip
    found = walk(data, block_bytes=block_bytes, count_tail=True)
    assert [entry for entry, _ in found] == list(range(20))
    wrong = [entry for entry, payload in found if payload != PAYLOADS[entry]]
    assert len(wrong) == 1
    assert dict(found)[wrong[0]] is None


@given(
    first=st.integers(0, 19), count=st.integers(0, 25), bytes_max=st.integers(0, 3000), size=st.integers(0, 5000),
    flip=st.none() | st.integers(0, 4000),
)  # fmt: skip
def test_run_equals_scan_up_to_the_first_damage(
    first: int, count: int, bytes_max: int, size: int, flip: int | None
) -> None:
    data = ledger_bytes(PAYLOADS)
    if flip is not None and flip < len(data):
        data[flip] ^= 1
    offset = LEDGER_START + sum(HEADER_BYTES + len(payload) for payload in PAYLOADS[:first])
    block = memoryview(data)[offset : offset + size]
    expected: list[tuple[int, int, bytes]] = []
    room, place = bytes_max, offset
    for number in range(first, min(first + count, 20)):
        end = place + HEADER_BYTES + len(PAYLOADS[number])
        room -= len(PAYLOADS[number])
        if end > offset + size or (room < 0 and expected) or (flip is not None and place <= flip < end):
            break
        expected.append((number, number + 1, PAYLOADS[number]))
        place = end
    for run in (sound_run, plain_run):
        found, after = run(block, offset, LEDGER, first, first + count, bytes_max)
        assert [(entry.position.entry, entry.messages, bytes(entry.payload)) for entry in found] == expected
        assert after == place


def test_flipped_length_of_the_last_entry_loses_only_that_entry() -> None:
    data = ledger_bytes(PAYLOADS)
    place = len(data) - len(PAYLOADS[-1]) - HEADER_BYTES + 4
    for flip in range(1, 256):
        for byte in range(4):
            damaged = bytearray(data)
            damaged[place + byte] ^= flip
            found = walk(damaged, count_tail=True)
            assert found == [*enumerate(PAYLOADS[:-1]), (19, None)], (flip, byte)


@given(size=st.integers(LEDGER_START, 4000))
def test_a_torn_tail_is_not_part_of_the_ledger(size: int) -> None:
    data = ledger_bytes(PAYLOADS)
    whole = 0
    end = LEDGER_START
    for payload in PAYLOADS:
        end += HEADER_BYTES + len(payload)
        whole += end <= size
    assert walk(data[:size], count_tail=True) == list(enumerate(PAYLOADS))[:whole]


def test_a_hole_of_zeros_loses_only_its_entries() -> None:
    data = ledger_bytes(PAYLOADS)
    starts = [
        data.index(encode_header(LEDGER, 5, 0, 0, 0, b"")[8:24]) - 8,
        data.index(encode_header(LEDGER, 9, 0, 0, 0, b"")[8:24]) - 8,
    ]
    data[starts[0] : starts[1]] = bytes(starts[1] - starts[0])
    expected: list[tuple[int, bytes | None]] = [
        (entry, None if 5 <= entry < 9 else payload) for entry, payload in enumerate(PAYLOADS)
    ]
    assert walk(data) == expected


def test_payload_that_looks_like_a_record_is_not_taken_for_one() -> None:
    fake = encode_header(LEDGER, 7, 4242, 1, 0, b"") + bytes(50)
    payloads = [b"a" * 30, fake, b"b" * 30]
    data = ledger_bytes(payloads)
    data[LEDGER_START + 4] ^= 0xFF  # the length of entry 0: the next record must be searched
    assert walk(data) == [(0, None), (1, fake), (2, b"b" * 30)]
