"""Log lines: extra fields shown, one line per record, secrets hidden."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.runtime.logs import LogFormat, hide_secrets, setup_logs


@pytest.fixture
def lines() -> Iterator[Any]:
    made: list[logging.Handler] = []
    root = logging.getLogger()
    level = root.level

    def start(form: LogFormat, minimum: str = "info") -> io.StringIO:
        stream = io.StringIO()
        made.append(setup_logs(minimum, form, stream))
        return stream

    yield start
    for handler in made:
        root.removeHandler(handler)
    root.setLevel(level)


def test_text_shows_extra_fields(lines: Any) -> None:
    stream = lines("text")
    logging.getLogger("a.b").info("split planned", extra={"segment": 3, "reason": "too hot"})
    line = stream.getvalue()
    assert line.endswith('INFO    a.b: split planned segment=3 reason="too hot"\n')
    assert line[10] == "T" and line[23] == "Z"


def test_json_is_one_object_per_line(lines: Any) -> None:
    stream = lines("json")
    logging.getLogger("a").warning("hé %s", "x", extra={"n": 1, "b": b"\x00", "level": "mine"})
    found = json.loads(stream.getvalue())
    assert (found["level"], found["message"], found["n"], found["level_"]) == ("warning", "hé x", 1, "mine")


def test_a_name_with_a_line_break_stays_in_its_line(lines: Any) -> None:
    stream = lines("text")
    logging.getLogger("a").info("topic %s", "x\nFAKE line", extra={"name_": "y\nz"})
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_hidden(lines: Any, form: LogFormat) -> None:
    stream = lines(form)
    logging.getLogger("a").info(
        "auth with Bearer abc.def", extra={"token": "s3cret", "auth_password": "s3cret", "url": "etcd://u:s3cret@h:1/x"}
    )
    try:
        raise ValueError("pulsar://me:s3cret@host")
    except ValueError:
        logging.getLogger("a").exception("failed")
    text = stream.getvalue()
    assert "s3cret" not in text and "abc.def" not in text
    assert "etcd://u:***@h:1/x" in text


def test_level_and_replacement(lines: Any) -> None:
    old = lines("text", "debug")
    new = lines("text", "warning")
    logging.getLogger("a").info("quiet")
    logging.getLogger("a").warning("loud")
    assert old.getvalue() == ""
    assert "loud" in new.getvalue() and "quiet" not in new.getvalue()


def test_tracebacks_are_kept(lines: Any) -> None:
    stream = lines("json")
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("a").exception("failed")
    assert "KeyError: 'gone'" in json.loads(stream.getvalue())["error"]


def test_plain_text_is_left_alone() -> None:
    assert (
        hide_secrets("persistent://public/default/x: 3 tokens at 10:20@noon")
        == "persistent://public/default/x: 3 tokens at 10:20@noon"
    )
