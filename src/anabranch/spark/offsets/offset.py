"""The position of a query: a cut through the segments of each topic, as a value and as the JSON that Spark stores.
Pure.

    {"v":1,"topics":{"topic://public/default/orders":{"uid":"7","s":{
        "3":{"p":"12:840","r":[0,32767],"b":"12:0"},"4":{"p":"13:77","r":[32768,65535],"d":true}}}}}

| field | meaning                                                                                                  |
|-------|----------------------------------------------------------------------------------------------------------|
| `p`   | the next entry to read, `ledger:entry`; everything before it is in a finished batch                      |
| `r`   | the segment's hash range: it says what a segment held whose record is gone                               |
| `b`   | where reading of the segment began; only in the end of the batch that opened it, so that a batch is told |
|       | by its end alone (Spark does not keep the start of the first one)                                        |
| `d`   | the segment is sealed and all of it was read                                                             |
| `t`   | the topic that has the entries, where the name of the segment does not say it                            |

Spark compares offsets as text, so keys are sorted and nothing in them changes unless the cut does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.model.errors import Error
from anabranch.model.position import Position

FORMAT = 1


class BadOffset(Error):
    """Text that is no offset of ours."""

    code = "bad-offset"


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one segment is read."""

    position: Position  # the next entry to read
    span: tuple[int, int]  # hash range, both ends included
    base: Position | None = None
    is_drained: bool = False
    topic: str | None = None

    @property
    def is_fresh(self) -> bool:
        """Nothing of it was read yet."""
        return self.base is not None and self.base == self.position


@dataclass(frozen=True, slots=True)
class Cut:
    """How far one topic is read: segments that follow each other are never both in it."""

    uid: str  # the topic's incarnation; "" when it is not known
    marks: Mapping[int, Mark]


Offset = Mapping[str, Cut]
"""By topic."""


def dump(offset: Offset) -> dict[str, Any]:
    """As JSON, in one way only."""
    topics = {
        topic: {"uid": cut.uid, "s": {str(one): _dump_mark(cut.marks[one]) for one in sorted(cut.marks)}}
        for topic, cut in sorted(offset.items())
    }
    return {"v": FORMAT, "topics": topics}


def load(value: Any) -> dict[str, Cut]:
    """What `dump` gave, also when it went through a file; BadOffset for anything else."""
    try:
        if value["v"] != FORMAT:
            raise BadOffset(f"offset of format {value['v']!r}; this version reads {FORMAT}")
        return {
            str(topic): Cut(str(cut["uid"]), {int(one): _load_mark(mark) for one, mark in cut["s"].items()})
            for topic, cut in value["topics"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadOffset(f"not an offset of ours: {error!r}") from error


def position_of(text: str) -> Position:
    """`ledger:entry`; ValueError for anything else."""
    ledger, colon, entry = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is not ledger:entry")
    return Position(int(ledger), int(entry))


def _dump_mark(mark: Mark) -> dict[str, Any]:
    made: dict[str, Any] = {"p": str(mark.position), "r": list(mark.span)}
    if mark.base is not None:
        made["b"] = str(mark.base)
    if mark.is_drained:
        made["d"] = True
    if mark.topic is not None:
        made["t"] = mark.topic
    return made


def _load_mark(value: Mapping[str, Any]) -> Mark:
    start, end = value["r"]
    base = value.get("b")
    return Mark(
        position_of(value["p"]),
        (int(start), int(end)),
        None if base is None else position_of(base),
        bool(value.get("d", False)),
        value.get("t"),
    )
