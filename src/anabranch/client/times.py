"""Moments as applications say them: milliseconds since 1970, or a datetime. Pure; knows no clock."""

from __future__ import annotations

from datetime import datetime

from anabranch.client.errors import BadOption
from anabranch.client.policies import Seconds, seconds

Moment = int | datetime


def milliseconds(moment: Moment, what: str) -> int:
    """Raises BadOption for a datetime without a time zone: it would mean another moment elsewhere."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadOption(f"{what} has no time zone")
        return round(moment.timestamp() * 1000)
    if moment < 0:
        raise BadOption(f"{what} must not be before 1970")
    return moment


def delivery_ms(now_ms: int, after: Seconds | None, at: Moment | None) -> int:
    """When a message may be delivered; 0: at once."""
    if after is None:
        return 0 if at is None else milliseconds(at, "deliver_at")
    if at is not None:
        raise BadOption("give either deliver_after or deliver_at")
    if seconds(after) < 0:
        raise BadOption("deliver_after must not be negative")
    return now_ms + int(seconds(after) * 1000)
