"""Cost of one acknowledgement with no holes and with a million, in memory and written down.

Expected: an ack touches one bit, so about 1 µs either way (ratio near 1); writing down costs per change, not per
hole.

    python benchmarks/micro/cursor.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from array import array
from collections.abc import Callable, Sequence

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.cursor.ack_state import AckState
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import CursorSaved, decode, encode
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain


class Host:
    """A topic of one ledger that writes nothing down."""

    def __init__(self, entries: int) -> None:
        self.chain = LedgerChain([ChainLedger(1, entries=entries, messages=entries)])

    def cursor_changed(self, cursor: Cursor) -> None:
        return None

    async def flush_state(self) -> None:
        return None

    async def messages_upto(self, p: Position) -> int:
        return self.chain.ordinal(p)


def cursor_with(holes: int, entries: int, seed: int) -> tuple[Cursor, list[Position]]:
    """A cursor with that many random holes, and the entries still to acknowledge in random order."""
    host = Host(entries)
    cursor = Cursor(host, "s", AckState(host.chain, EARLIEST), {}, consumed_messages=0)
    order = list(range(1, entries))  # entry 0 stays: nothing moves the mark-delete position
    random.Random(seed).shuffle(order)
    for entry in order[:holes]:
        cursor.ack(Position(1, entry), 1)
    cursor.take_changes()
    fresh = array("q", order[holes:]).tolist()  # new numbers side by side: measure acks, not cache misses of the input
    return cursor, [Position(1, entry) for entry in fresh]


def per_call(work: Callable[[Position], object], positions: Sequence[Position], rounds: int) -> float:
    """Microseconds of one call, the best of `rounds` equal parts."""
    size = len(positions) // rounds
    best = float("inf")
    for index in range(rounds):
        part = positions[index * size : (index + 1) * size]
        start = time.perf_counter()
        for p in part:
            work(p)
        best = min(best, (time.perf_counter() - start) / size)
    return best * 1e6


def measure(holes: int, acks: int) -> dict[str, float]:
    entries = 2 * holes + 2 * acks + 2
    cursor, rest = cursor_with(holes, entries, seed=7)
    result = {"holes": float(holes)}
    result["ack_us"] = per_call(lambda p: cursor.ack(p, 1), rest[:acks], rounds=5)
    start = time.perf_counter()
    delta = encode(cursor.take_changes())
    result["delta_us_per_ack"] = (time.perf_counter() - start) / acks * 1e6
    result["delta_bytes_per_ack"] = len(delta) / acks
    result["next_unacked_us"] = per_call(cursor.next_unacked, rest[:acks], rounds=5)
    start = time.perf_counter()
    snapshot = encode([cursor.saved()])
    result["snapshot_ms"] = (time.perf_counter() - start) * 1e3
    result["snapshot_bytes"] = float(len(snapshot))
    start = time.perf_counter()
    (record,) = decode(snapshot)
    assert isinstance(record, CursorSaved)
    state = AckState(LedgerChain([ChainLedger(1, entries=entries)]))
    state.restore(record.acks)
    result["restore_ms"] = (time.perf_counter() - start) * 1e3
    assert state.holes == cursor.state.holes
    return result


def in_order(acks: int) -> float:
    """The usual case: acknowledgements in order, no holes at all."""
    host = Host(acks + 1)
    cursor = Cursor(host, "s", AckState(host.chain, EARLIEST), {}, consumed_messages=0)
    return per_call(lambda p: cursor.ack(p, 1), [Position(1, entry) for entry in range(acks)], rounds=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 holes and fewer calls")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    holes, acks = (100_000, 5_000) if options.quick else (1_000_000, 50_000)
    none, many = measure(0, acks), measure(holes, acks)
    ratio = many["ack_us"] / none["ack_us"]
    if options.json:
        print(json.dumps({"in_order_us": in_order(acks), "none": none, "many": many, "ack_ratio": ratio}))
        return
    print(f"acks in order: {in_order(acks):.2f} µs each")
    print(f"{'':22}{'no holes':>14}{f'{holes:,} holes':>20}")
    for name in none:
        if name != "holes":
            print(f"{name:22}{none[name]:14.2f}{many[name]:20.2f}")
    print(f"ratio of one ack: {ratio:.2f}")


if __name__ == "__main__":
    main()
