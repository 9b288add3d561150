"""Text of others on a terminal: nothing in it may command the terminal; pipes get it unchanged."""

from __future__ import annotations

import json
import os
import pty
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.output.tables import pairs, table
from anabranch.cli.output.terminal import json_text, plain, say, visible

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\x7f\u200b\r"


def test_control_characters_become_escapes() -> None:
    assert plain("a\x1b[2J\nü") == "a\\x1b[2J\\nü"
    assert visible("a\nb\tc\x07") == "a\nb\tc\\x07"
    assert visible("größe 日本 🙂") == "größe 日本 🙂"
    shown = visible(ATTACK)
    assert shown == "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egnp\\x7f\\u200b\\r"
    assert plain("\ud800") == "\\ud800"


@given(st.text())
def test_shown_text_is_printable(text: str) -> None:
    assert plain(text).isprintable()
    assert all(one.isprintable() or one in "\n\t" for one in visible(text))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_keeps_its_value_and_holds_no_control_character(value: object) -> None:
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert json.loads(text) == value
        assert all(one.isprintable() or one == "\n" for one in text)


def test_cells_stay_on_one_line() -> None:
    assert table(("name",), [(ATTACK,), ("a\nb",)]).count("\n") == 2
    assert "\x1b" not in pairs({"key": ATTACK})


def test_pipe_gets_the_text_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    say("a\x9bb")
    say("c\x9bd", err=True)
    assert capfd.readouterr() == ("a\x9bb\n", "c\x9bd\n")


def test_terminal_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    main, other = pty.openpty()
    try:
        with open(other, "w", encoding="utf-8", closefd=False) as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            say(f"payload {ATTACK}")
            monkeypatch.undo()
        assert os.read(main, 4096).decode() == f"payload {visible(ATTACK)}\r\n"
    finally:
        os.close(main)
        os.close(other)
