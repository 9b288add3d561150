"""Audit of a delivery run: which messages were acknowledged, which were received, and in which order. No I/O.

A *stream* is whatever must stay in order (one key, or one producer); its messages are numbered 0, 1, 2 … by the sender.
At-least-once delivery may show a message again (a resend after a lost receipt, a redelivery after a lost ack), so order
is judged on first sightings: a number seen for the first time after a higher one is out of order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

Numbered = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    acknowledged: int  # distinct messages that the broker confirmed
    read: int  # distinct messages seen, confirmed or not
    lost: tuple[Numbered, ...]  # confirmed and never seen
    out_of_order: tuple[Numbered, ...]
    repeated: int  # sightings beyond the first

    @property
    def holds(self) -> bool:
        return not self.lost and not self.out_of_order

    def __str__(self) -> str:
        return (
            f"acknowledged {self.acknowledged}, read {self.read}, lost {len(self.lost)}{_some(self.lost)}, "
            f"out of order {len(self.out_of_order)}{_some(self.out_of_order)}, repeated {self.repeated}"
        )


def judge(
    acknowledged: Mapping[str, Collection[int]], reads: Mapping[str, Sequence[int]], *, ordered: bool = True
) -> Verdict:
    """Compare both sides; `ordered=False` for subscriptions that promise no order (Shared)."""
    lost: list[Numbered] = []
    late: list[Numbered] = []
    distinct = repeated = 0
    for stream, numbers in reads.items():
        seen: set[int] = set()
        highest = -1
        for number in numbers:
            if number in seen:
                repeated += 1
                continue
            seen.add(number)
            if number < highest:
                late.append((stream, number))
            highest = max(highest, number)
        distinct += len(seen)
    for stream, confirmed in acknowledged.items():
        lost += [(stream, number) for number in sorted(set(confirmed).difference(reads.get(stream, ())))]
    confirmed_total = sum(len(set(confirmed)) for confirmed in acknowledged.values())
    return Verdict(confirmed_total, distinct, tuple(lost), tuple(late) if ordered else (), repeated)


def by_stream(numbered: Iterable[Numbered]) -> dict[str, list[int]]:
    """Group a flat record of a run by stream, keeping its order."""
    grouped: dict[str, list[int]] = defaultdict(list)
    for stream, number in numbered:
        grouped[stream].append(number)
    return grouped


def encode(stream: str, number: int, size: int = 0) -> bytes:
    """The payload that carries a numbered message, padded to `size` bytes."""
    return f"{stream}|{number}|".encode().ljust(size, b".")


def decode(payload: bytes) -> Numbered:
    stream, number, _ = payload.split(b"|", 2)
    return stream.decode(), int(number)


def _some(numbered: Sequence[Numbered], most: int = 5) -> str:
    if not numbered:
        return ""
    shown = ", ".join(f"{stream}#{number}" for stream, number in numbered[:most])
    return f" ({shown}{', …' if len(numbered) > most else ''})"
