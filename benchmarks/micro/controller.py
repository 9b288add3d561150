"""CPU of the controller's decisions: one consumer joins many, one split of a small and of a large topic.

Expected: a join sorts the consumers and moves its share, so well below a millisecond for 1,000 consumers; storing the
assignment costs about 0.1 µs per segment. A record has about 250 bytes per segment, sealed ones included, and a split
of a topic with 1,000 segments costs 100 times the JSON of one with 10.

    python benchmarks/micro/controller.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from anabranch.controller.group.assignment import Assignment, AwaitRelease, Joined, SegmentsChanged
from anabranch.controller.group.drain_tracker import Drained, DrainRecord, DrainTracker, LayoutChanged
from anabranch.controller.records.topic_record import TopicRecord, committed, planned, sealing
from anabranch.controller.records.topic_record_codec import decode_record, encode_record
from anabranch.model.layout import NO_LIMITS, Layout
from anabranch.model.replacement import plan_split
from anabranch.model.segment import Seal

NOW_MS = 1_790_000_000_000


def best_ms(work: Callable[[], object], rounds: int) -> float:
    """CPU milliseconds of one call, the best of several."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best * 1e3


def divided(record: TopicRecord, segment_id: int) -> TopicRecord:
    """One whole split, as the record sees it: planned, sealing, committed, each written and the last one read again."""
    plan = plan_split(record.layout, segment_id, now_ms=NOW_MS, limits=NO_LIMITS)
    begun = planned(record, "op", plan, now_ms=NOW_MS)
    encode_record(begun)
    turned = sealing(begun, "op")
    encode_record(turned)
    data = encode_record(committed(turned, "op", {segment_id: Seal(NOW_MS)}, now_ms=NOW_MS))
    return decode_record(data)


def topic(segments: int) -> TopicRecord:
    """Half of its segments sealed, as after a life of splits."""
    record = TopicRecord(Layout.initial(1, now_ms=NOW_MS))
    layout = record.layout
    while len(layout.segments) < segments:
        one = min(layout.active, key=lambda it: (-it.hash_range.size, it.segment_id))
        plan = plan_split(layout, one.segment_id, now_ms=NOW_MS, limits=NO_LIMITS)
        record = planned(TopicRecord(layout), "op", plan, now_ms=NOW_MS)
        layout = committed(record, "op", {one.segment_id: Seal(NOW_MS)}, now_ms=NOW_MS).layout
    return TopicRecord(layout)


def join(segments: int, consumers: int, rounds: int) -> dict[str, float]:
    machine = Assignment()
    for number in range(consumers):
        machine.handle(Joined(f"consumer-{number:05}"))
    machine.handle(SegmentsChanged(Layout.initial(segments, now_ms=NOW_MS).active))
    names = iter(range(rounds))
    moved = 0

    def one_joins() -> None:
        nonlocal moved
        effects = machine.handle(Joined(f"late-{next(names):05}"))
        moved = sum(isinstance(effect, AwaitRelease) for effect in effects)

    cpu_ms = best_ms(one_joins, rounds)
    store_ms = best_ms(lambda: json.dumps(machine.record().to_json()), rounds)
    return {"segments": segments, "consumers": consumers, "moved": moved, "join_ms": cpu_ms, "store_ms": store_ms}


def split_of(segments: int, rounds: int) -> dict[str, float]:
    record = topic(segments)
    chosen = record.layout.active[0].segment_id
    return {
        "segments": len(record.segments),
        "record_bytes": len(encode_record(record)),
        "split_ms": best_ms(lambda: divided(record, chosen), rounds),
    }


def drain_of(segments: int, rounds: int) -> dict[str, float]:
    """A parent is drained: how long until its children are known to be open."""
    layout = topic(segments).layout
    parent = max(segment.segment_id for segment in layout.sealed)
    others = {segment.segment_id: 0 for segment in layout.sealed if segment.segment_id != parent}
    gates = []
    for _ in range(rounds):
        gate = DrainTracker(DrainRecord(drained=others))
        gate.handle(LayoutChanged(layout))
        gates.append(gate)
    left = iter(gates)
    return {"segments": len(layout.segments), "open_ms": best_ms(lambda: next(left).handle(Drained(parent)), rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = 3 if options.quick else 10
    result = {
        "join": join(10_000, 1_000, rounds),
        "split-10": split_of(10, rounds),
        "split-1000": split_of(1_000, rounds),
        "drain-1000": drain_of(1_000, rounds),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, row in result.items():
        print(
            f"{name:12}"
            + "  ".join(f"{key} {value:,.3g}" if value < 10 else f"{key} {value:,.0f}" for key, value in row.items())
        )


if __name__ == "__main__":
    main()
