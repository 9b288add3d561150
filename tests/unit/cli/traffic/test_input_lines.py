"""Lines of any input, however it is cut into blocks."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.traffic.input_lines import LineSplitter, line_batches
from anabranch.model.errors import BadRequest


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\xff"]), max_size=30), st.integers(1, 5))
def test_lines_do_not_depend_on_the_blocks(parts: list[bytes], size: int) -> None:
    text = b"".join(parts)
    splitter = LineSplitter()
    found = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])]
    assert found + splitter.end() == [line.rstrip(b"\r\n") for line in io.BytesIO(text)]


def test_line_without_an_end_is_refused_beyond_the_limit() -> None:
    splitter = LineSplitter(line_bytes_max=4)
    assert splitter.feed(b"abcd\nabcd") == [b"abcd"]
    with pytest.raises(BadRequest, match="more than 4 bytes"):
        splitter.feed(b"e")


async def test_files_of_the_system_and_of_memory_are_read(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\r\ntwo\n\nlast")
    with (tmp_path / "lines").open("rb") as file:
        assert [batch async for batch in line_batches(file)] == [[b"one", b"two", b""], [b"last"]]
    assert [batch async for batch in line_batches(io.BytesIO(b"x\n"))] == [[b"x"]]


async def test_lines_of_a_pipe_come_before_its_end() -> None:
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as file:
        batches = line_batches(file)
        os.write(sink, b"one\ntwo\nthr")
        async with asyncio.timeout(10):
            assert await anext(batches) == [b"one", b"two"]
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            assert not waiting.done()
            os.write(sink, b"ee\n")
            assert await waiting == [b"three"]
            os.close(sink)
            assert [batch async for batch in batches] == []
