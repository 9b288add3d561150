"""Histogram and hot key of a segment from sampled entries."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from anabranch.broker.segment.key_sampler import HALF_LIFE_LOOKS, HISTOGRAM_SUM, SLOTS, KeySampler
from anabranch.model.autoscale.load import SAMPLED_KEY_CHARS_MAX
from anabranch.model.hashrange import HashRange
from anabranch.model.routing import RingHash, key_hash
from anabranch.protocol import entry
from anabranch.protocol import pulsar_pb2 as pb

WHOLE = HashRange(0, 0xFFFF)


class Sent(NamedTuple):
    messages: int
    payload: bytes


def single(key: str | None, size: int = 10) -> Sent:
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if key is not None:
        of.partition_key = key
    return Sent(1, entry.seal_entry(of, b"x" * size))


def batch(keys: list[str], compression: pb.CompressionType = pb.NONE) -> Sent:
    body = bytearray()
    for key in keys:
        described = pb.SingleMessageMetadata(payload_size=1, partition_key=key).SerializeToString()
        body += len(described).to_bytes(4, "big") + described + b"x"
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    of.num_messages_in_batch, of.partition_key = len(keys), keys[0]
    of.compression = compression
    return Sent(len(keys), entry.seal_entry(of, bytes(body)))


def sampler(hash_range: HashRange = WHOLE, *, shows_keys: bool = True) -> KeySampler:
    return KeySampler(hash_range, RingHash.LOW16, shows_keys=shows_keys)


def publish(to: KeySampler, *sent: Sent) -> int:
    """As the segment does. The number of samples that this took."""
    before = to._taken
    to.left -= len(sent)
    if to.left < 0:
        to.take(sent)
    return to._taken - before


def position(key: str) -> int:
    return RingHash.LOW16.ring_position(key_hash(key))


def test_key_with_most_of_the_load_is_found_with_its_hash_share_and_text() -> None:
    found = sampler()
    for number in range(4_000):
        publish(found, single("hot" if number % 10 < 7 else f"k{number}"))
    hot = found.hot_key()
    assert hot is not None
    assert (hot.hash, hot.key) == (position("hot"), "hot")
    assert hot.share == pytest.approx(0.7, abs=0.15)


def test_even_keys_have_no_hot_key_and_an_even_histogram() -> None:
    found = sampler()
    for look in range(HALF_LIFE_LOOKS * 4):
        for number in range(1_000):
            publish(found, single(f"k{look}-{number}"))
        found.look(by_bytes=False)
    assert found.hot_key() is None
    histogram = found.histogram()
    assert len(histogram) == SLOTS
    assert sum(histogram) == pytest.approx(HISTOGRAM_SUM, abs=SLOTS)
    assert sum(histogram[: SLOTS // 2]) == pytest.approx(HISTOGRAM_SUM / 2, abs=100)


def test_alternating_keys_are_both_sampled() -> None:
    found = sampler()
    for number in range(10_000):
        publish(found, single(("a", "b")[number % 2]))
    hot = found.hot_key()
    assert hot is not None
    assert hot.share == pytest.approx(0.5, abs=0.2)


def test_burst_of_any_size_costs_few_samples() -> None:
    found, sent = sampler(), single("k")
    assert sum(publish(found, sent) for _ in range(100_000)) < 250
    found.look(by_bytes=False)
    assert sum(publish(found, sent) for _ in range(100_000)) <= 40, "the last interval is what to expect"


def test_run_of_entries_is_sampled_as_single_ones() -> None:
    one_by_one, together = sampler(), sampler()
    sent = [single(f"k{number}") for number in range(900)]
    for one in sent:
        publish(one_by_one, one)
    for start in range(0, 900, 100):
        publish(together, *sent[start : start + 100])
    assert one_by_one.histogram() == together.histogram()


def test_batch_counts_for_all_its_messages() -> None:
    found = sampler()
    for _ in range(10):
        publish(found, batch(["a"] * 8), single("b"))
    hot = found.hot_key()
    assert hot is not None
    assert (hot.key, hot.share) == ("a", pytest.approx(8 / 9, abs=0.01))


def test_compressed_batch_counts_by_its_outer_key() -> None:
    found = sampler()
    for _ in range(600):
        publish(found, batch(["a", "b"], pb.LZ4))
    hot = found.hot_key()
    assert hot is not None
    assert hot.key == "a"


def test_damaged_entries_do_not_count() -> None:
    found = sampler()
    for _ in range(100):
        publish(found, Sent(1, b"\x0e"), Sent(3, batch(["a", "b", "c"]).payload[:-4]))
    assert found.histogram() == ()


def test_messages_without_key_count_evenly() -> None:
    found = sampler()
    for _ in range(100):
        publish(found, single(None))
    assert set(found.histogram()) == {float(round(HISTOGRAM_SUM / SLOTS))}
    assert found.hot_key() is None


def test_share_is_that_of_bytes_when_bytes_decide() -> None:
    found = sampler()
    found.look(by_bytes=True)
    for number in range(400):
        publish(found, single("large", 5_000) if number % 4 == 0 else single(f"k{number}", 50))
    hot = found.hot_key()
    assert hot is not None
    assert hot.key == "large"
    assert hot.share > 0.8


def test_slots_divide_the_range_of_the_segment() -> None:
    half = HashRange(0x8000, 0xFFFF)
    key = next(key for key in map(str, range(1_000)) if position(key) >= 0xFC00)
    found = sampler(half)
    for _ in range(100):
        publish(found, single(key))
    histogram = found.histogram()
    assert histogram[-1] == HISTOGRAM_SUM
    assert sum(histogram) == HISTOGRAM_SUM


def test_old_samples_lose_their_weight() -> None:
    found = sampler()
    for _ in range(200):
        publish(found, single("old"))
    for _ in range(HALF_LIFE_LOOKS * 3):
        for _ in range(200):
            publish(found, single("new"))
        found.look(by_bytes=False)
    hot = found.hot_key()
    assert hot is not None
    assert hot.key == "new"
    assert hot.share > 0.9


def test_keys_that_are_not_shown_are_not_kept() -> None:
    found = sampler(shows_keys=False)
    for _ in range(600):
        publish(found, single("secret"))
    hot = found.hot_key()
    assert hot is not None
    assert (hot.hash, hot.key) == (position("secret"), "")
    assert "secret" not in repr(found._texts)


def test_long_key_is_cut() -> None:
    found = sampler()
    for _ in range(600):
        publish(found, single("k" * 1_000))
    hot = found.hot_key()
    assert hot is not None
    assert len(hot.key) == SAMPLED_KEY_CHARS_MAX
