"""Any record of a store survives its JSON line; any other text is refused with a typed error."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.archive import BadArchive, Begin, End, Line, Record, Sequence, line_of, parse_line
from anabranch.metadata.interface import Versioned
from anabranch.metadata.open import without_credentials
from anabranch.metadata.recipes.sequential_keys import sequence_key
from anabranch.metadata.transfer import sequence_prefix

parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=20)
keys = st.lists(parts, min_size=1, max_size=5).map(lambda found: "/" + "/".join(found))
numbers = st.integers(-(2**63), 2**63 - 1)
values = st.binary(max_size=60) | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)
records = st.builds(
    lambda key, value, version, created, modified: Record((key, Versioned(value, version, created, modified, False))),
    *(keys.filter(lambda key: not f"{key}/".startswith("/.meta/")), values, numbers, numbers, numbers),
)
lines = (
    records
    | st.builds(Begin, keys)
    | st.builds(Sequence, keys, st.integers(0, 10**10 - 1))
    | st.builds(End, st.integers(0), st.integers(0))
)


@given(lines)
def test_archive_line_round_trip(line: Line) -> None:
    text = line_of(line)
    assert "\n" not in text
    assert parse_line(text, 1) == line


@given(st.text() | st.from_regex(r'\{"(key|end|sequence|anabranch)": [^\n]*\}'))
def test_invalid_archive_line_is_refused(text: str) -> None:
    try:
        parse_line(text, 7)
    except BadArchive as error:
        assert error.reason.startswith("line 7")


@given(keys, st.text("%2F5/", max_size=6))
def test_prefixes_of_sequences_come_back(key: str, more: str) -> None:
    assert sequence_prefix(sequence_key(key + more)) == key + more


WORDS = st.text(string.ascii_letters + string.digits + ":/?#%@,[]", min_size=1)


@given(st.sampled_from(["zk", "etcd", "oxia", "mysql"]), WORDS)
def test_credentials_are_never_shown(scheme: str, word: str) -> None:
    url = f"{scheme}://user:§{word}@host:1/x"
    assert without_credentials(url) == f"{scheme}://host:1/x"


@given(keys, st.sampled_from(["h", "h:1", "h:1,i:2", "[::1]:3"]))
def test_paths_stay(path: str, hosts: str) -> None:
    assert without_credentials(f"zk://{hosts}{path}") == f"zk://{hosts}{path}".partition("?")[0]
    assert without_credentials(f"sqlite://{path}") == f"sqlite://{path}"
