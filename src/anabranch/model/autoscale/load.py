"""The load of a segment, as its owner reports it at `…/segments/{id}/load`.

The four rates that PIP-483 names are those of the last 60 s. Our additions in the same record: the rates of the last
5 s, the times since which a threshold is crossed, a histogram over the segment's hash range, and a hot key.

    owner, at each sample       load = sampled(stored, measured, policy, now_ms)
                                if stored is None or is_material(stored, load, change, policy): write encode_load(load)
    leader                      decode_load(data)

`below_merge_since_ms` is set when all four rates fall below the merge thresholds and is kept until one of them does
not, so changes below the threshold do not restart the merge window. It travels in the record: a new owner keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from operator import lt, truediv
from typing import Any

from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint
from anabranch.model.errors import Error
from anabranch.model.hashrange import RING_MAX

HISTOGRAM_SLOTS = (16, 32)
SAMPLED_KEY_CHARS_MAX = 256
TRIFLE = 0.1  # of a merge threshold: rates below it are all alike


HOT_KEY_KEPT = 0.8  # of the share at which a key counts as hot
HISTOGRAM_SCORE_MIN = 0.5
HISTOGRAM_CHANGE = 0.35  # two samples of the same load differ by less


class BadLoadReport(Error):
    """The stored load of a segment cannot be read; the segment's owner writes a new one at the next change."""

    code = "bad-load-report"


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over one window."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0

    def __add__(self, other: Rates) -> Rates:
        return Rates(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[float, float, float, float]:
        """In the order of `policy.METRICS`."""
        return self.msg_rate_in, self.bytes_rate_in, self.msg_rate_out, self.bytes_rate_out

    def greatest(self, other: Rates) -> Rates:
        return Rates(*map(max, self.values(), other.values()))

    def ratios(self, policy: AutoScalePolicy) -> tuple[float, ...]:
        """Rate divided by split threshold, in the order of `policy.METRICS`."""
        return tuple(map(truediv, self.values(), policy.split_thresholds))

    def score(self, policy: AutoScalePolicy) -> float:
        """The highest of the four ratios; above 1 the segment is too hot."""
        return max(self.ratios(policy))

    def is_below_merge(self, policy: AutoScalePolicy) -> bool:
        """All rates are below the merge thresholds; never with a threshold of 0, which switches merging off."""
        return all(map(lt, self.values(), policy.merge_thresholds))


@dataclass(frozen=True, slots=True)
class HotKey:
    """One hash value with a large share of its segment's load."""

    hash: int  # ring position
    share: float  # of the load that decides, 0 to 1
    key: str = ""  # a key with that hash, sampled; cut after SAMPLED_KEY_CHARS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLoad:
    rates: Rates  # of the last 60 s
    fast_rates: Rates | None = None  # of the last 5 s; None: Pulsar's brokers do not report them
    below_merge_since_ms: int | None = None  # all rates have been below the merge thresholds from then on
    above_split_since_ms: int | None = None  # a deciding rate has been above its split threshold from then on
    histogram: tuple[float, ...] = ()  # load by slot of equal width over the segment's range; empty: not known
    hot_key: HotKey | None = None
    reported_at_ms: int = 0
    reported_by: str = ""  # the broker that wrote it

    @property
    def is_idle(self) -> bool:
        """Below all merge thresholds, or without traffic where merging is off."""
        return self.below_merge_since_ms is not None or not any(self.rates.values())

    def deciding(self, policy: AutoScalePolicy) -> Rates:
        """The rates that decide on a split."""
        return self.fast_rates if policy.is_fast and self.fast_rates is not None else self.rates

    def highest(self, policy: AutoScalePolicy) -> Rates:
        """The higher of the 60 s rates and the deciding rates: what a merged segment has to bear."""
        return self.rates.greatest(self.deciding(policy))


def sampled(stored: SegmentLoad | None, measured: SegmentLoad, policy: AutoScalePolicy, now_ms: int) -> SegmentLoad:
    """The report for what was measured now. Since-times go on from the stored record, also under another owner."""
    is_cold = measured.rates.is_below_merge(policy)
    is_hot = measured.deciding(policy).score(policy) > 1
    return replace(
        measured,
        below_merge_since_ms=_since(is_cold, None if stored is None else stored.below_merge_since_ms, now_ms),
        above_split_since_ms=_since(is_hot, None if stored is None else stored.above_split_since_ms, now_ms),
        reported_at_ms=now_ms,
    )


def _since(holds: bool, before: int | None, now_ms: int) -> int | None:
    return (now_ms if before is None else min(before, now_ms)) if holds else None


def is_material(stored: SegmentLoad, load: SegmentLoad, change: float, policy: AutoScalePolicy) -> bool:
    """Whether `load` is to be written: a threshold is crossed, a hot key came or went, or a rate moved by more than
    `change` (0.25: a quarter) of the stored one. From or to 0 is always such a move; between two rates far below the
    merge threshold nothing is, because no decision depends on it and trickles would write for ever. Infinite `change`:
    rates and histogram do not count."""
    if (stored.below_merge_since_ms is None) != (load.below_merge_since_ms is None):
        return True
    if (stored.above_split_since_ms is None) != (load.above_split_since_ms is None):
        return True
    if _has_other_hot_key(stored, load, policy) or (isfinite(change) and _has_other_histogram(stored, load, policy)):
        return True
    pairs = [(stored.rates, load.rates)]
    if policy.is_fast:
        pairs.append((stored.deciding(policy), load.deciding(policy)))
    return any(
        _has_moved(old, new, change, TRIFLE * threshold)
        for before, after in pairs
        for threshold, old, new in zip(policy.merge_thresholds, before.values(), after.values(), strict=True)
    )


def _has_moved(old: float, new: float, change: float, trifle: float) -> bool:
    if 0 < old < trifle and 0 < new < trifle:
        return False
    return abs(new - old) > change * old


def _has_other_hot_key(stored: SegmentLoad, load: SegmentLoad, policy: AutoScalePolicy) -> bool:
    """A reported hot key stays one until its share is clearly below the policy's, because shares are estimates."""
    was, now = _hot_hash(stored, policy), load.hot_key
    if was is not None and now is not None and now.hash == was:
        return now.share < HOT_KEY_KEPT * policy.hot_key_share
    return was != _hot_hash(load, policy)


def _has_other_histogram(stored: SegmentLoad, load: SegmentLoad, policy: AutoScalePolicy) -> bool:
    """The load has moved within the range of a segment that may be split where it is: more than `HISTOGRAM_CHANGE` of
    it is in other slots."""
    if policy.split_point is not SplitPoint.LOAD or not load.histogram:
        return False
    if load.deciding(policy).score(policy) <= HISTOGRAM_SCORE_MIN:
        return False
    if len(stored.histogram) != len(load.histogram):
        return True
    before, after = sum(stored.histogram) or 1.0, sum(load.histogram) or 1.0
    moved = sum(abs(a / before - b / after) for a, b in zip(stored.histogram, load.histogram, strict=True)) / 2
    return moved > HISTOGRAM_CHANGE


def _hot_hash(load: SegmentLoad, policy: AutoScalePolicy) -> int | None:
    hot = load.hot_key
    return None if hot is None or hot.share < policy.hot_key_share else hot.hash


# -- JSON

_NAMES = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
_FAST = "5s"


def load_json(load: SegmentLoad) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(_NAMES, load.rates.values(), strict=True))
    if load.fast_rates is not None:
        found.update({f"{name}{_FAST}": rate for name, rate in zip(_NAMES, load.fast_rates.values(), strict=True)})
    optional = {
        "belowMergeSinceMs": load.below_merge_since_ms,
        "aboveSplitSinceMs": load.above_split_since_ms,
        "histogram": list(load.histogram) or None,
        "hotKey": None
        if load.hot_key is None
        else {
            "hash": load.hot_key.hash,
            "share": load.hot_key.share,
            "key": load.hot_key.key[:SAMPLED_KEY_CHARS_MAX],
        },
        "reportedBy": load.reported_by or None,
    }
    found.update({name: value for name, value in optional.items() if value is not None})
    return {**found, "reportedAtMs": load.reported_at_ms}


def encode_load(load: SegmentLoad) -> bytes:
    return json.dumps(load_json(load), separators=(",", ":")).encode()


def decode_load(data: bytes) -> SegmentLoad:
    """Raises BadLoadReport. Unknown fields are ignored; a record with PIP-483's four fields only is complete."""
    try:
        value = json.loads(data)
        return _load(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadLoadReport(f"not a load report: {type(error).__name__}: {error}") from error


def _load(value: Mapping[str, Any]) -> SegmentLoad:
    hot = value.get("hotKey")
    histogram = tuple(_rate(one) for one in value.get("histogram") or ())
    if len(histogram) not in (0, *HISTOGRAM_SLOTS):
        raise ValueError(f"a histogram of {len(histogram)} slots")
    return SegmentLoad(
        rates=Rates(*(_rate(value[name]) for name in _NAMES)),
        fast_rates=Rates(*(_rate(value[f"{name}{_FAST}"]) for name in _NAMES))
        if f"{_NAMES[0]}{_FAST}" in value
        else None,
        below_merge_since_ms=_time(value.get("belowMergeSinceMs")),
        above_split_since_ms=_time(value.get("aboveSplitSinceMs")),
        histogram=histogram,
        hot_key=None if hot is None else _hot_key(hot),
        reported_at_ms=int(value.get("reportedAtMs", 0)),
        reported_by=str(value.get("reportedBy", "")),
    )


def _hot_key(value: Mapping[str, Any]) -> HotKey:
    position, share = int(value["hash"]), float(value["share"])
    if not (0 <= position <= RING_MAX and 0 <= share <= 1):
        raise ValueError(f"hot key at {position} with a share of {share}")
    return HotKey(position, share, str(value.get("key", ""))[:SAMPLED_KEY_CHARS_MAX])


def _rate(value: Any) -> float:
    rate = float(value)
    if not (isfinite(rate) and rate >= 0):
        raise ValueError(f"a rate of {rate}")
    return rate


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
