"""The codec of batches: encoded rows are decoded, in any selection; stock batches are read; damage is BadEntry."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol import codec, entry
from anabranch.protocol.codec import Body, Columns, Properties, Texts
from anabranch.protocol.errors import BadEntry

Row = tuple[bytes | None, bytes | None, int, int, list[tuple[bytes, bytes]]]

texts = st.text(max_size=6).map(str.encode)
rows_of = st.lists(
    st.tuples(
        st.none() | texts,
        st.none() | st.binary(max_size=300),
        st.integers(0, 2**40),
        st.integers(-1, 2**62),
        st.lists(st.tuples(texts, texts), max_size=2),
    ),
    max_size=12,
)


def texts_of(values: list[bytes | None]) -> Texts:
    offsets = array("i", [0])
    for value in values:
        offsets.append(offsets[-1] + len(value or b""))
    bits = [value is not None for value in values]
    return Texts(
        offsets.tobytes(), b"".join(value or b"" for value in values), None if all(bits) else codec.python.bitmap(bits)
    )


def columns_of(rows: list[Row]) -> Columns:
    pairs = array("i", [0])
    for row in rows:
        pairs.append(pairs[-1] + len(row[4]))
    names = texts_of([name for row in rows for name, _ in row[4]])
    values = texts_of([value for row in rows for _, value in row[4]])
    return Columns(
        len(rows),
        [len(rows)],
        array("i", range(len(rows))).tobytes(),
        texts_of([row[0] for row in rows]),
        None,
        texts_of([row[1] for row in rows]),
        array("q", [row[2] for row in rows]).tobytes(),
        array("q", [row[3] for row in rows]).tobytes(),
        Properties(pairs.tobytes(), names, values) if pairs[-1] else None,
    )


def plain(texts: Texts, count: int) -> list[bytes | None]:
    offsets, data = memoryview(texts.offsets).cast("i"), bytes(texts.data)
    bits = texts.validity
    return [
        data[offsets[i] : offsets[i + 1]] if bits is None or bits[i >> 3] >> (i & 7) & 1 else None for i in range(count)
    ]


def rows_in(columns: Columns) -> list[Row]:
    count = columns.rows
    keys, values = plain(columns.key, count), plain(columns.value, count)
    times, sequences = memoryview(columns.event_time).cast("q"), memoryview(columns.sequence_id).cast("q")
    found: list[Row] = []
    for i in range(count):
        pairs: list[tuple[bytes, bytes]] = []
        if columns.properties is not None:
            starts = memoryview(columns.properties.offsets).cast("i")
            names = plain(columns.properties.names, starts[-1])
            contents = plain(columns.properties.values, starts[-1])
            for at in range(starts[i], starts[i + 1]):
                name, content = names[at], contents[at]
                assert name is not None
                assert content is not None
                pairs.append((name, content))
        found.append((keys[i], values[i], times[i], sequences[i], pairs))
    return found


@given(rows_of, st.data())
def test_encoded_rows_are_decoded(rows: list[Row], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    body = codec.encode(columns_of(rows), chosen)
    back = codec.decode([Body(body, len(chosen))])
    assert rows_in(back) == [rows[i] for i in chosen]
    assert list(memoryview(back.index).cast("i")) == list(range(len(chosen)))


@given(rows_of, rows_of)
def test_several_bodies_are_decoded_in_order(one: list[Row], other: list[Row]) -> None:
    bodies = [Body(codec.encode(columns_of(rows), range(len(rows))), len(rows)) for rows in (one, other)]
    back = codec.decode(bodies)
    assert rows_in(back) == one + other
    assert list(back.rows_per_body) == [len(one), len(other)]


def test_a_batch_of_a_stock_client() -> None:
    stored = entry.build_batch([b"a", b"bb"], keys=["k", None], sequence_id=7)
    _, body = entry.opened(stored)
    back = codec.decode([Body(body, 2)])
    assert rows_in(back) == [(b"k", b"a", 0, 7, []), (None, b"bb", 0, 8, [])]


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_damage_raises_bad_entry(cut: int) -> None:
    body = codec.encode(columns_of([(b"k", b"value", 0, 1, [])]), [0])
    with pytest.raises(BadEntry):
        codec.decode([Body(body[:-cut], 1)])
    with pytest.raises(BadEntry):
        codec.decode([Body(body + b"x" * cut, 1)])


@given(st.binary(max_size=60), st.integers(0, 3))
def test_any_bytes_are_decoded_or_refused(body: bytes, count: int) -> None:
    try:
        assert codec.decode([Body(body, count)]).rows <= count
    except BadEntry:
        pass
