"""Keys of a metadata store as a tree, with their facts in columns. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anabranch.cli.output.tables import table
from anabranch.cli.output.terminal import plain, visible

if TYPE_CHECKING:
    from anabranch.metadata.interface import Versioned

HEX_LINE = 32
HEX_LINES_MAX = 16


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a record, without its value: a tree may be large."""

    version: int
    created_ms: int
    modified_ms: int
    bytes: int
    ephemeral: bool


def facts_of(record: Versioned) -> Facts:
    return Facts(record.version, record.created_ms, record.modified_ms, len(record.value), record.ephemeral)


@dataclass(slots=True)
class KeyNode:
    """One key. Without a record it exists only because there are keys below it."""

    name: str
    key: str
    facts: Facts | None = None
    below: dict[str, KeyNode] = field(default_factory=dict)
    has_more: bool = False  # keys below that were not asked for


def grow(root: str, records: Iterable[tuple[str, Facts]]) -> KeyNode:
    """The tree of these keys, all of them `root` or below it."""
    top = KeyNode(plain(root), root)
    start = "" if root == "/" else root
    for key, facts in records:
        at = top
        for part in key[len(start) :].split("/")[1:] if key != root else ():
            at = at.below.setdefault(part, KeyNode(plain(part), f"{'' if at.key == '/' else at.key}/{part}"))
        at.facts = facts
    return top


def lines_of(top: KeyNode, *, columns: bool) -> list[str]:
    """The tree; with columns, behind what is known of each key."""
    drawn = [(top.name + mark(top), top), *_branches(top)]
    if not columns:
        return [text for text, _ in drawn]
    heads = ("key", "version", "created", "modified", "bytes", "ephemeral")
    return table(heads, [(text, *_columns(twig.facts)) for text, twig in drawn]).splitlines()


def mark(twig: KeyNode) -> str:
    return "/" if twig.has_more and twig.name != "/" else ""


def _branches(top: KeyNode) -> Iterator[tuple[str, KeyNode]]:
    """Without recursion: a key may have thousands of parts."""
    waiting = _siblings(top, "")
    while waiting:
        indent, is_last, one = waiting.pop()
        yield f"{indent}{'└─ ' if is_last else '├─ '}{one.name}{mark(one)}", one
        waiting += _siblings(one, indent + ("   " if is_last else "│  "))


def _siblings(parent: KeyNode, indent: str) -> list[tuple[str, bool, KeyNode]]:
    """Last first, as a stack wants them."""
    ordered = [twig for _, twig in sorted(parent.below.items(), reverse=True)]
    return [(indent, number == 0, twig) for number, twig in enumerate(ordered)]


def _columns(facts: Facts | None) -> Sequence[Any]:
    if facts is None:
        return ("-", "-", "-", "-", "-")
    times = moment(facts.created_ms), moment(facts.modified_ms)
    return (str(facts.version), *times, str(facts.bytes), "yes" if facts.ephemeral else "-")


def objects_of(top: KeyNode) -> Iterator[dict[str, Any]]:
    """For programs: every key, parents first."""
    for twig in (top, *(twig for _, twig in _branches(top))):
        fields: dict[str, Any] = {"key": twig.key, "has_value": twig.facts is not None}
        if twig.facts is not None:
            fields |= asdict(twig.facts)
        yield fields | {"has_keys_below": bool(twig.below) or twig.has_more}


def facts_line(facts: Facts) -> str:
    session = ", ephemeral" if facts.ephemeral else ""
    return f"version {facts.version}, {facts.bytes:,} bytes, {moment(facts.modified_ms)}{session}"


def moment(milliseconds: int) -> str:
    """UTC; 0 is not known."""
    if milliseconds <= 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError):
        return f"{milliseconds} ms"


def value_text(value: bytes) -> str:
    """A value for people: JSON indented, text as it is, anything else in hexadecimal, cut where it gets long."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return _hexadecimal(value)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        shown = visible(text)
        return shown.removesuffix("\n")
    return json.dumps(fields, ensure_ascii=False, indent=2) if isinstance(fields, dict | list) else text.strip()


def _hexadecimal(value: bytes) -> str:
    rows = [value[at : at + HEX_LINE].hex(" ") for at in range(0, min(len(value), HEX_LINE * HEX_LINES_MAX), HEX_LINE)]
    hidden = len(value) - HEX_LINE * HEX_LINES_MAX
    if hidden > 0:
        rows.append(f"… and {hidden:,} bytes more; --raw writes them all")
    return "\n".join(rows)
