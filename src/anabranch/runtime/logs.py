"""Log output for people or for machines, with the `extra` fields of every call, and with secrets hidden.

    2026-11-16T01:02:03.456Z INFO  anabranch.broker.topic: split planned segment=3 reason=hot
    {"time":"2026-11-16T01:02:03.456Z","level":"info","logger":"anabranch.broker.topic","message":"split planned",…}

A record is always one line (except for tracebacks in text form), whatever a client put into a name: control, bidi and
invisible characters are written as escapes, because a terminal that shows the log obeys them.

Every module logs with `get_logger`: a fixed event text, and the facts as `extra` fields. An application configures
`logging` itself, and most formatters show only the message. So the message is the event text followed by the fields,
and the fields stay attributes of the record.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, Self, TextIO

LogFormat = Literal["text", "json"]


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_NAME = re.compile(r"token|password|passwd|secret|credential|authorization|api_?key|private_?key", re.I)
_SECRET_IN_TEXT = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(@)|(\bBearer\s+)[^\s,;\"']+|\beyJ[\w-]+\.[\w-]+\.[\w-]*", re.I)
_PLAIN = re.compile(r"[^\s\"'=]+")
_HIDDEN = "***"


def hide_secrets(text: str) -> str:
    """Replaces passwords inside URLs, bearer tokens and JWTs by ***."""

    def hidden(match: re.Match[str]) -> str:
        if match[1]:
            return f"{match[1]}{_HIDDEN}{match[2]}"
        return f"{match[3] or ''}{_HIDDEN}"

    return _SECRET_IN_TEXT.sub(hidden, text)


def shown_fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """The `extra` fields of a call, in order, formatted."""
    for name, value in vars(record).items():
        if name in _STANDARD or name.startswith("_"):
            continue
        if _SECRET_NAME.search(name):
            yield name, _HIDDEN
        elif value is None or isinstance(value, (bool, int, float)):
            yield name, value
        else:
            yield name, hide_secrets(str(value))


def visible(text: str, keep: str = "\n\t") -> str:
    """All but printable characters and those of `keep` as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escape(one) for one in text)


def _escape(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode()


def json_text(value: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """JSON that holds no control character, and everything printable as it is."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _json_escape(one) for one in text)


def _json_escape(one: str) -> str:
    return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]


class EventText(str):
    """The fixed text of a log call. `str()` returns it with the fields; comparisons see only the fixed text."""

    __slots__ = ("_fields",)
    _fields: str

    def __new__(cls, event: str, fields: str) -> Self:
        made = super().__new__(cls, event)
        made._fields = fields
        return made

    def __str__(self) -> str:
        return f"{self.event} {self._fields}"

    @property
    def event(self) -> str:
        return self[:]


def get_logger(name: str) -> logging.Logger:
    """The logger of a module of this package."""
    made = logging.getLogger(name)
    made.addFilter(_add_fields)
    return made


def _add_fields(record: logging.LogRecord) -> bool:
    fields = " ".join(f"{name}={_value(value)}" for name, value in shown_fields(record))
    if fields:
        record.msg, record.args = EventText(record.getMessage(), fields), None
    return True


def _event_of(record: logging.LogRecord) -> str:
    return record.msg.event if isinstance(record.msg, EventText) else record.getMessage()


def _value(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and _PLAIN.fullmatch(text) else json_text(text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    def __init__(self, origin: str = "") -> None:
        super().__init__()
        self._origin = f"{origin} " if origin else ""

    def format(self, record: logging.LogRecord) -> str:
        message = json_text(hide_secrets(_event_of(record)))[1:-1].replace('\\"', '"')
        parts = [f"{_time(record)} {self._origin}{record.levelname:<7} {record.name}: {message}"]
        parts += [f"{name}={_value(value)}" for name, value in shown_fields(record)]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + visible(hide_secrets(self.formatException(record.exc_info)))
        return line


class JsonFormatter(logging.Formatter):
    def __init__(self, origin: str = "") -> None:
        super().__init__()
        self._origin = {"origin": origin} if origin else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            **self._origin,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hide_secrets(_event_of(record)),
        }
        for name, value in shown_fields(record):
            line[name if name not in line else f"{name}_"] = value
        if record.exc_info:
            line["error"] = hide_secrets(self.formatException(record.exc_info))
        return json_text(line, separators=(",", ":"))


def set_log_level(level: str) -> None:
    """Of all loggers of this process, while it runs."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))


def setup_logs(
    level: str = "info", form: LogFormat = "text", stream: TextIO | None = None, origin: str = ""
) -> logging.Handler:
    """Send records of `level` and above to `stream` (standard error). A later call replaces an earlier one.

    `origin` is part of every line: it tells which of several processes that share the stream wrote it.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(origin) if form == "json" else TextFormatter(origin))
    handler.set_name("anabranch")
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == "anabranch"]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_log_level(level)
    return handler
