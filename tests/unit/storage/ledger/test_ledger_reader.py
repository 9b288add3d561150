"""Blocks are reused when their last view is gone, never before."""

from __future__ import annotations

from anabranch.storage.ledger.ledger_reader import BlockPool


def test_block_with_views_is_not_reused() -> None:
    pool = BlockPool(16, 2)
    first = memoryview(pool.take())
    kept = first[3:5]
    kept[:] = b"ab"
    del first
    other = memoryview(pool.take())
    other[:] = bytes(16)
    assert bytes(kept) == b"ab"


def test_block_is_reused_when_its_last_view_is_gone() -> None:
    pool = BlockPool(16, 2)
    view = memoryview(pool.take())
    part = view[1:]
    numbers = {id(view.obj)}
    del view
    assert id(pool.take()) not in numbers
    del part
    assert id(pool.take()) in numbers


def test_blocks_beyond_the_kept_maximum_are_not_kept() -> None:
    pool = BlockPool(16, 2)
    views = [memoryview(pool.take()) for _ in range(5)]
    kept = [id(view.obj) for view in views[:2]]
    assert len({id(view.obj) for view in views}) == 5
    del views
    again = [memoryview(pool.take()) for _ in range(2)]
    assert [id(view.obj) for view in again] == kept
