"""A topic pattern matches the same names as Python's regular expressions do."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.topic_pattern import TopicPattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\d", r"\W", "[a-b.]"])
COUNTS = st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: f"({'|'.join(some)})"),
        st.tuples(inner, COUNTS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.lists(st.text("ab.0", max_size=8), min_size=1, max_size=8))
def test_same_names_as_pythons_regular_expressions(pattern: str, names: list[str]) -> None:
    ours, theirs = TopicPattern(pattern), re.compile(pattern)
    for name in names:
        assert ours.matches(name) == (theirs.fullmatch(name) is not None), (pattern, name)
