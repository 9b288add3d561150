"""Times as applications give them: milliseconds since 1970, or a datetime."""

from __future__ import annotations

from datetime import datetime

from anabranch.client.config import Seconds, seconds
from anabranch.client.errors import BadOption

Moment = int | datetime
LATEST_MS = (1 << 63) - 1  # maximum on the wire


def milliseconds(moment: Moment, what: str) -> int:
    """Raises BadOption for a datetime without a time zone, because its meaning would depend on the machine."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadOption(f"{what} has no time zone")
        moment = round(moment.timestamp() * 1000)
    if not isinstance(moment, int):
        raise BadOption(f"{what} must be milliseconds since 1970 or a datetime, not {moment!r}")
    if not 0 <= moment <= LATEST_MS:
        raise BadOption(f"{what} must not be before 1970, nor later than {LATEST_MS}")
    return moment


def delivery_ms(now_ms: int, after: Seconds | None, at: Moment | None) -> int:
    """The earliest delivery time in milliseconds; 0: at once."""
    if after is None:
        return 0 if at is None else milliseconds(at, "deliver_at")
    if at is not None:
        raise BadOption("give either deliver_after or deliver_at")
    delay_ms = seconds(after, "deliver_after") * 1000
    if not 0 <= delay_ms <= LATEST_MS - now_ms:  # false for NaN, too
        raise BadOption(f"deliver_after must not be negative or too large: {after!r}")
    return now_ms + int(delay_ms)
