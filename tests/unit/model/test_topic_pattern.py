"""Patterns of topic names: what they match, what is refused, and that their cost is bounded."""

from __future__ import annotations

import pytest

from anabranch.model.errors import BadName, NotAllowed
from anabranch.model.topic_pattern import CACHE_MAX, PATTERN_CHARS_MAX, STATES_MAX, TopicPattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("persistent://public/default/.*", ["public/default/x", "public/default/"], ["public/other/x"]),
        ("p/d/a.b", ["p/d/a.b", "p/d/axb"], ["p/d/ab", "p/d/a.bc", "xp/d/a.b"]),
        (r"p/d/a\.b", ["p/d/a.b"], ["p/d/axb"]),
        (r"p/d/\Qa.b*\E+", ["p/d/a.b*", "p/d/a.b***"], ["p/d/a.b", "p/d/a.b*a.b*"]),
        (r"p/d/\Qa.b", ["p/d/a.b"], ["p/d/axb"]),
        ("(foo|bar)?x", ["x", "foox", "barx"], ["foobarx", ""]),
        ("(?:a|b(c|d))+", ["a", "bc", "abdbca"], ["b", "", "abx"]),
        ("a{2}b{1,2}c{2,}d??", ["aabcc", "aabbcccccd"], ["abcc", "aabc", "aabbbcc"]),
        ("[a-cx-]+", ["a", "cab", "x-"], ["d", "-d", ""]),
        ("[^a-c]", ["d", "-"], ["a", "dd", ""]),
        (r"[\d_]+\D\w\W\s", ["1_2x_- "], ["1_2x_-x", "x"]),
        (r"[\.\]]{2}", [".]", "]]"], ["x]"]),
        ("^ab$", ["ab"], ["^ab", "xab", "abx"]),
        ("ü.", ["üß", "ü-"], ["u-"]),
        ("", [""], ["a"]),
        ("a||b", ["a", "", "b"], ["ab"]),
        ("(a*)*b", ["b", "aaab"], ["a"]),
    ],
)
def test_whole_name_is_matched(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = TopicPattern(pattern)
    assert [name for name in matching + others if compiled.matches(name)] == matching


@pytest.mark.parametrize("pattern", ["a(", "a)", "[a", "[z-a]", "*a", "a{", "a{x}", "a{2,1}", "a\\", "a|*", "a{,3}"])
def test_pattern_with_an_error_is_refused(pattern: str) -> None:
    with pytest.raises(BadName):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?=a)", "(?i)a", "(?<n>a)", r"(a)\1", r"\ba", r"\p{L}", "a^b", "a$b", "(a$)", "a++", "a**"),
        *("[[:alpha:]]", "[a&&b]", "[]a]", r"[\d-z]", "a{257}", "(" * 40 + ")" * 40, "a" * (PATTERN_CHARS_MAX + 1)),
        *("(((a{250}){250}){250}){250}", "((){250}){250}"),
    ],
)
def test_unsupported_or_too_large_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(NotAllowed):
        TopicPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*a){12}b", "a?" * 60 + "a" * 60 + "b"])
def test_cost_of_patterns_that_hang_backtracking_matchers_is_linear(pattern: str) -> None:
    compiled = TopicPattern(pattern)
    names = ["a" * length for length in range(990, 1000)]
    assert not any(compiled.matches(name) for name in names)
    assert compiled.cost <= sum(map(len, names)) * (STATES_MAX + 1)


def test_cache_is_bounded() -> None:
    compiled = TopicPattern("(.*[ab].{8})*")
    for number in range(300):
        compiled.matches(f"{number:0100b}".replace("0", "a").replace("1", "x"))
        assert compiled._cached <= CACHE_MAX + 110 * (STATES_MAX + 1)
