"""Log lines: extra fields shown, one line per record, secrets hidden."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.runtime.logs import LogFormat, get_logger, hide_secrets, setup_logs


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


BIDI = "topic://public/default/\u202egnp.exe\u200b\x1b[2J\x7f\x85"


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_cannot_control_the_terminal_that_shows_the_log(lines: Any, form: LogFormat) -> None:
    stream = lines(form)
    log = logging.getLogger("a")
    log.info("created %s", BIDI, extra={"topic": BIDI, "plain": "\u202ex"})
    try:
        raise ValueError(BIDI)
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert text.replace("\n", "").isprintable()
    assert "default/\\u202egnp.exe\\u200b\\u001b[2J\\u007f\\u0085" in text
    if form == "json":
        assert json.loads(text.splitlines()[0])["topic"] == BIDI, "programs read the name as it is"


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


def plain_lines(text: str, **fields: Any) -> str:
    """What a handler with the formatter of `logging.basicConfig()` writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    log = get_logger("anabranch.test")
    log.addHandler(handler)
    try:
        log.warning(text, extra=fields)
    finally:
        log.removeHandler(handler)
    return stream.getvalue()


def test_the_message_of_a_record_has_the_fields_under_any_formatter() -> None:
    line = plain_lines("reconnecting after a delay", topic="topic://public/default/a", reason="it broke", delay_s=0.1)
    assert line == (
        "WARNING:anabranch.test:reconnecting after a delay"
        ' topic=topic://public/default/a reason="it broke" delay_s=0.1\n'
    )


def test_the_message_hides_secrets_and_stays_one_line() -> None:
    line = plain_lines("refused", token="s3cret", url="etcd://u:s3cret@h:1/x", name_="y\nz")
    assert "s3cret" not in line and line.count("\n") == 1


def test_fields_under_any_formatter_hold_no_bidi_characters() -> None:
    assert r'topic="topic://a/b/\u202ex"' in plain_lines("moved", topic="topic://a/b/\u202ex")


def test_a_record_keeps_its_fixed_text_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("anabranch.test").warning("split %s", "planned", extra={"segment": 3, "share": "50 %s"})
    (record,) = caplog.records
    assert record.msg == "split planned" and record.__dict__["segment"] == 3
    assert record.getMessage() == 'split planned segment=3 share="50 %s"'


@pytest.mark.parametrize(
    ("form", "expected"), [("text", "moved segment=3\n"), ("json", '"message":"moved","segment":3}\n')]
)
def test_own_formats_show_each_field_once(lines: Any, form: LogFormat, expected: str) -> None:
    stream = lines(form)
    get_logger("anabranch.test").info("moved", extra={"segment": 3})
    assert stream.getvalue().endswith(expected) and stream.getvalue().count("segment") == 1
