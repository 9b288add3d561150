"""Topic names, message ids and numbers in paths, queries and bodies."""

from __future__ import annotations

from typing import Any

from anabranch.model.errors import BadRequest
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.rest.http_message import Request

WORDS = {"earliest": EARLIEST, "latest": LATEST}
_FORMS = 'the body is "earliest", "latest" or {"ledgerId": …, "entryId": …}'

_IMPLIED_DOMAINS = (
    ("/admin/v2/scalable/", Domain.TOPIC),
    ("/admin/v2/scalable-topics/", Domain.TOPIC),
    ("/anabranch/v1/scalable/", Domain.TOPIC),
    ("/admin/v2/segments/", Domain.TOPIC),  # the topic of the segment
    ("", Domain.PERSISTENT),  # schemas
)


def topic_of(request: Request) -> TopicName:
    """The topic that the path names; raises BadName."""
    params = request.params
    domain = params.get("domain") or next(
        domain for start, domain in _IMPLIED_DOMAINS if request.path.startswith(start)
    )
    return TopicName.from_parts(domain, params["tenant"], params["namespace"], params["topic"])


def shown(position: Position, *, partition: int = -1, batch_index: int = -1) -> dict[str, int]:
    return {
        "ledgerId": position.ledger,
        "entryId": position.entry,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": batch_index + 1 if batch_index >= 0 else 0,
    }


def parse_position(value: Any) -> Position:
    """ "earliest", "latest" or an object; missing fields are -1."""
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if isinstance(value, dict):
        ledger, entry = value.get("ledgerId", -1), value.get("entryId", -1)
        if all(isinstance(number, int) and not isinstance(number, bool) for number in (ledger, entry)):
            return bounded(ledger, entry)
    raise BadRequest(_FORMS)


def parse_number(text: str, what: str) -> int:
    """An integer in a path or query."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise BadRequest(f"{what} must be an integer, not {text!r}")
    return int(text)


def bounded(ledger: int, entry: int) -> Position:
    """A position in range: EARLIEST for a negative ledger, LATEST for one too large."""
    if ledger < 0:
        return EARLIEST
    return LATEST if ledger >= LATEST.ledger else Position(ledger, max(-1, min(entry, LATEST.entry)))
