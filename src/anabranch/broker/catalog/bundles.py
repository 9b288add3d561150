"""Bundles: the hash ranges of a namespace, as Pulsar's tools name them. A topic's hash is CRC-32 of its full name."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from anabranch.model.errors import BadRequest, NotAllowed

FULL = 0xFFFF_FFFF
DEFAULT_COUNT = 4
COUNT_MAX = 4_096


def boundaries_of(record: Mapping[str, Any]) -> list[int]:
    found = (record.get("bundles") or {}).get("boundaries")
    return [int(text, 16) for text in found] if found else evenly(DEFAULT_COUNT)


def evenly(count: int) -> list[int]:
    step = (FULL + 1) // count
    return [*(step * index for index in range(count)), FULL]


def shown(boundaries: Sequence[int]) -> dict[str, Any]:
    return {"boundaries": [f"0x{place:08x}" for place in boundaries], "numBundles": len(boundaries) - 1}


def parse_bundles(value: Any) -> dict[str, Any] | None:
    """The bundles that a namespace is created with; None: the default."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequest('bundles must be an object like {"numBundles": 4}')
    given, count = value.get("boundaries"), value.get("numBundles", 0)
    if not isinstance(count, int) or isinstance(count, bool) or count > COUNT_MAX:
        raise BadRequest(f"numBundles must be a number up to {COUNT_MAX}")
    if not given:
        return shown(evenly(count)) if count > 0 else None
    try:
        places = sorted({int(text, 16) for text in given})
    except (TypeError, ValueError) as error:
        raise BadRequest("boundaries must be strings like 0x40000000") from error
    if len(places) < 2 or len(places) > COUNT_MAX or places[0] != 0 or places[-1] != FULL:
        raise BadRequest("boundaries span 0x00000000 to 0xffffffff")
    return shown(places)


def place_of(topic: str) -> int:
    return zlib.crc32(topic.encode())


def bundle_of(topic: str, boundaries: Sequence[int]) -> str:
    index = min(bisect_right(boundaries, place_of(topic)), len(boundaries) - 1)
    return f"0x{boundaries[index - 1]:08x}_0x{boundaries[index]:08x}"


def parse_range(text: str, boundaries: Sequence[int]) -> tuple[int, int]:
    """The bundle that a path names; it must be one of the namespace's."""
    low, _, high = text.partition("_")
    try:
        span = int(low, 16), int(high, 16)
    except ValueError as error:
        raise NotAllowed(f"Invalid bundle range: {text}") from error
    if span not in pairwise(boundaries):
        raise NotAllowed(f"Invalid upper boundary for bundle {text}: the namespace has no such bundle")
    return span


def holds(span: tuple[int, int], topic: str) -> bool:
    low, high = span
    return low <= place_of(topic) and (place_of(topic) < high or high == FULL)


def split(boundaries: Sequence[int], span: tuple[int, int]) -> list[int]:
    low, high = span
    if high - low < 2:
        raise NotAllowed("the bundle is too small to be split")
    return sorted({*boundaries, low + (high - low + 1) // 2})
