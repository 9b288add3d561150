"""The native codec and the Python one give the same bytes, or the same kind of error, for any input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.codec import Body, core
from tests.support.fuzz.codec_cases import Cases, borders, listed, outcome, routed, written

pytestmark = pytest.mark.skipif(core.NATIVE is None, reason="built without a C compiler")


def implementations() -> tuple[core.Loops, core.Loops]:
    assert core.NATIVE is not None
    return core.PYTHON, core.NATIVE


@given(st.integers(0, 2**64))
def test_decode(seed: int) -> None:
    bodies = Cases(seed).bodies()
    python, native = (outcome(loops.decode, bodies) for loops in implementations())
    assert python == native


@given(st.lists(st.builds(Body, st.binary(max_size=60), st.integers(-1, 4)), max_size=3))
def test_decode_anything(bodies: list[Body]) -> None:
    python, native = (outcome(loops.decode, bodies) for loops in implementations())
    assert python == native


@given(st.integers(0, 2**64))
def test_rows_of_bodies(seed: int) -> None:
    bodies = Cases(seed).bodies()
    python, native = (outcome(listed, loops, bodies) for loops in implementations())
    assert python == native
    assert python[0] == outcome(core.PYTHON.decode, bodies)[0], (
        "what cannot be decoded cannot be opened, and vice versa"
    )


@given(st.lists(st.builds(Body, st.binary(max_size=60), st.integers(-1, 4)), max_size=3))
def test_rows_of_anything(bodies: list[Body]) -> None:
    python, native = (outcome(listed, loops, bodies) for loops in implementations())
    assert python == native


@given(st.integers(0, 2**64))
def test_encode_of_what_was_decoded(seed: int) -> None:
    cases = Cases(seed, is_tame=True)
    python, native = implementations()
    columns = python.decode([cases.body(), cases.body()])
    rows = [cases.random.randrange(columns.rows) for _ in range(cases.random.randrange(9))] if columns.rows else []
    assert bytes(python.encode(columns, rows)) == bytes(native.encode(columns, rows))


@given(st.integers(0, 2**64))
def test_write(seed: int) -> None:
    values, keys, options = Cases(seed).rows()
    python, native = (outcome(written, loops, values, keys, options) for loops in implementations())
    assert python == native


@given(st.integers(0, 2**64))
def test_route(seed: int) -> None:
    cases = Cases(seed)
    _, keys, _ = cases.rows()
    starts, first = borders(cases.random), cases.random.randrange(2**40)
    python, native = (outcome(routed, loops, keys or [], starts, first) for loops in implementations())
    assert python == native
