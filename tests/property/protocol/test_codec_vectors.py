"""Decoding by whole columns gives the result of decoding record by record, or leaves the input to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.codec import Body, core, python, vectors
from anabranch.protocol.errors import BadEntry
from tests.support.fuzz.codec_cases import Cases, outcome, plain


@given(st.integers(0, 2**64), st.integers(1, 3))
def test_the_usual_form_is_decoded_by_columns(seed: int, count: int) -> None:
    cases = Cases(seed)
    bodies = [cases.usual() for _ in range(count)]
    expected = plain(python.decode(bodies))
    for guess_bytes_max in (0, 400, 1 << 20):  # never, as it comes, always
        found = vectors.decode(bodies, guess_bytes_max)
        assert found is not None
        assert plain(found) == expected


@given(st.integers(0, 2**64))
def test_damage_and_other_forms_are_left_to_the_python_decoder(seed: int) -> None:
    cases = Cases(seed)
    bodies = [cases.usual() for _ in range(2)] if cases.random.random() < 0.5 else [*cases.bodies(), cases.body()]
    place = cases.random.randrange(len(bodies))
    bodies[place] = cases.damaged(bodies[place])
    agrees(bodies)


PARTS = [
    b"\x12\x01k", b"\x12\x00", b"\x12\x02\xc3\xa9", b"\x18\x00", b"\x18\x01", b"\x18\x80\x00", b"\x28\x81\x01",
    b"\x40\x05", b"\x40\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x12", b"\x18", b"\x28", b"\x40", b"\x81", b"\xff",
    b"\x20\x01", b"\x00",
]  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=5).map(b"".join), min_size=1, max_size=3))
def test_any_metadata(singles: list[bytes]) -> None:
    """Valid and invalid fields in any order, complete and truncated; few values, so that they do not hide a fault."""
    agrees([Body(b"".join(len(one).to_bytes(4, "big") + one for one in singles), len(singles))])


@given(st.lists(st.builds(Body, st.binary(max_size=60), st.integers(-1, 4)), max_size=3))
def test_anything(bodies: list[Body]) -> None:
    agrees(bodies)


def agrees(bodies: list[Body]) -> None:
    for guess_bytes_max in (0, 1 << 20):
        found = vectors.decode(bodies, guess_bytes_max)
        assert found is None or ("made", plain(found)) == outcome(python.decode, bodies)


@pytest.mark.parametrize(
    "single",
    [
        b"\x18\x00\x40",  # ends where a number should be
        b"\x18\x00\x40\x81",  # inside a number
        b"\x12\x09k\x18\x00\x40\x05",  # a key beyond its record
        b"\x12\x01\xff\x18\x00",  # a key that is no text
        b"\x40\x05",  # no size
        b"\x18\x00\x40\x05\x40\x06",  # twice the same
        b"\x18\x00\x20\x01",  # emptied by compaction
    ],
)
def test_unusual_records_are_not_decoded_by_columns(single: bytes) -> None:
    record = len(single).to_bytes(4, "big") + single
    assert vectors.decode([Body(record * 2, 2)]) is None


def test_keys_are_text_one_by_one() -> None:
    """Two halves of a character are not text, though together they are."""
    whole, halves = ([b"\xc3\xa9", b""], [b"\xc3", b"\xa9"])
    for keys, is_text in ((whole, True), (halves, False)):
        singles = [b"\x12" + bytes((len(key),)) + key + b"\x18\x00" for key in keys]
        body = b"".join(len(one).to_bytes(4, "big") + one for one in singles)
        assert (vectors.decode([Body(body, 2)]) is not None) is is_text


def test_many_rows_are_decoded_by_columns_and_few_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(bodies: list[Body]) -> None:
        asked.append(sum(count for _, count in bodies))

    monkeypatch.setattr(core, "_by_columns", lambda: counted)
    record = b"\0\0\0\2\x18\0"
    for rows in (core.VECTOR_ROWS_MIN - 1, core.VECTOR_ROWS_MIN):
        assert core.PYTHON.decode([Body(record * rows, rows)]).rows == rows
    assert asked == [core.VECTOR_ROWS_MIN]
    with pytest.raises(BadEntry):
        core.PYTHON.decode([Body(record, core.VECTOR_ROWS_MIN)])
