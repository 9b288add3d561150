"""Message ids in JSON, both ways. Pure."""

from __future__ import annotations

from typing import Any

from anabranch.model.errors import BadRequest
from anabranch.model.position import EARLIEST, LATEST, Position

WORDS = {"earliest": EARLIEST, "latest": LATEST}
_FORMS = 'the body is "earliest", "latest" or {"ledgerId": …, "entryId": …}'


def shown(position: Position, *, partition: int = -1, batch_index: int = -1) -> dict[str, int]:
    return {
        "ledgerId": position.ledger,
        "entryId": position.entry,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": batch_index + 1 if batch_index >= 0 else 0,
    }


def parse_position(value: Any) -> Position:
    """A word, or an object; what it leaves out is -1."""
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if isinstance(value, dict):
        ledger, entry = value.get("ledgerId", -1), value.get("entryId", -1)
        if all(isinstance(number, int) and not isinstance(number, bool) for number in (ledger, entry)):
            return bounded(ledger, entry)
    raise BadRequest(_FORMS)


def parse_number(text: str, what: str) -> int:
    """A whole number in a path or query."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise BadRequest(f"{what} is a whole number, not {text!r}")
    return int(text)


def bounded(ledger: int, entry: int) -> Position:
    """Within what positions can be: below is the earliest, above the latest."""
    if ledger < 0:
        return EARLIEST
    return LATEST if ledger >= LATEST.ledger else Position(ledger, max(-1, min(entry, LATEST.entry)))
