"""Who is let in to a segment: by generations, and by the controller's word where a client cannot say one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.segment.reader_fence import ReaderFence


def test_lower_generations_are_refused() -> None:
    fence = ReaderFence()
    assert fence.admits("a-seg-3", 3, 0)
    assert fence.raise_to(7)
    assert not fence.raise_to(7)
    assert not fence.raise_to(6)
    assert fence.admits("b-seg-3", 3, 7) and fence.admits("b-seg-3", 3, 8)
    assert not fence.admits("a-seg-3", 3, 6)


def test_client_without_generation_needs_a_name_once_one_is_known() -> None:
    fence = ReaderFence()
    assert fence.admits("java-seg-3", 3, None)
    fence.raise_to(5)
    assert not fence.admits("java-seg-3", 3, None)
    assert not fence.admits("", 3, None)
    assert fence.raise_to(5, "java")
    assert fence.admits("java-seg-3", 3, None) and fence.admits("java", 3, None)
    assert not fence.admits("java-seg-4", 3, None)
    assert not fence.raise_to(5)  # a repeated close
    assert fence.admits("java-seg-3", 3, None)
    fence.raise_to(6)
    assert not fence.admits("java-seg-3", 3, None)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "x", "y"]))))
def test_fence_never_decreases(raised: list[tuple[int, str]]) -> None:
    fence, highest = ReaderFence(), 0
    for generation, holder in raised:
        fence.raise_to(generation, holder)
        highest = max(highest, generation)
        assert fence.generation == highest
        assert not fence.admits("z", 0, highest - 1)
        assert fence.admits("z", 0, highest)
