"""Where in its hash range a segment's load is: a histogram and a hot key, from a sample of its entries. Pure.

Between two looks of the load reporter, gaps between sampled entries grow, so a burst of any size costs few samples.
Each sampled entry counts for the entries of its gap, hence the sample is unbiased. Gaps vary by a fixed sequence,
because a fixed step would miss keys that alternate. At each look older samples lose weight: half of it in
`HALF_LIFE_LOOKS`.

An entry without batch has one key. Of a batch its first messages are read, a bounded number; if it is compressed or
encrypted, the key in its outer metadata counts, which is that of its first message. Messages without key are spread
evenly over the ring by their producers, so they count evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from anabranch.model.autoscale.load import HISTOGRAM_SLOTS, SAMPLED_KEY_CHARS_MAX, HotKey
from anabranch.model.hashrange import HashRange
from anabranch.model.routing import RingHash
from anabranch.protocol import entry
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.errors import ProtocolError
from anabranch.protocol.keyhash import murmur3_32
from anabranch.storage.interface import Payload

SLOTS = HISTOGRAM_SLOTS[-1]
SAMPLES_PER_LOOK = 32
SAMPLES_PER_GAP = 16  # then the gap is doubled
LARGE_SAMPLES = 2  # the first ones after a look: a burst may be one large batch
LARGE_MESSAGES_MAX = 64
BATCH_MESSAGES_MAX = 8
HALF_LIFE_LOOKS = 12
DECAY = 0.5 ** (1 / HALF_LIFE_LOOKS)
KEYS_MAX = 128
KEYS_MIN = 16.0  # a histogram of fewer keys says nothing
HOT_KEYS_MIN = 50.0  # nor does a share of fewer
HOT_SHARE_MIN = 0.1
HISTOGRAM_SUM = 1000


class Sampled(Protocol):
    """A SEND, as far as it matters here."""

    @property
    def messages(self) -> int: ...

    @property
    def payload(self) -> Payload: ...


class KeySampler:
    """Of one segment that this broker owns."""

    __slots__ = ("_by_bytes", "_entries", "_gap", "_keys", "_range", "_ring_hash", "_seed", "_shows_keys",
                 "_slots", "_taken", "_texts", "_weights", "left")  # fmt: skip

    def __init__(self, hash_range: HashRange, ring_hash: RingHash, *, shows_keys: bool) -> None:
        """`shows_keys`: a hot key is reported with its text, otherwise with its hash only."""
        self.left = 0  # entries before the next sample; the publisher of the segment counts it down
        self._range, self._ring_hash, self._shows_keys = hash_range, ring_hash, shows_keys
        self._by_bytes = False
        self._gap, self._taken, self._entries, self._seed = 1, 0, 0, 1
        self._clear()

    def _clear(self) -> None:
        self._keys = 0.0  # sampled keys, by their remaining weight
        self._slots: list[float] = []  # empty before the first sample: idle segments have a sampler each
        self._weights: dict[int, float] = {}  # by ring position
        self._texts: dict[int, str] = {}

    # entries ----------------------------------------------------------------------------------------------------------
    def take(self, publishes: Sequence[Sampled]) -> None:
        """Called with each run of entries for which `left` has become negative by their number."""
        while self.left < 0:
            publish = publishes[self.left]
            self._sample(publish.messages, publish.payload)
            self.left += self._next_gap()

    def _next_gap(self) -> int:
        """Entries from one sample to the next: `_gap` on average."""
        self._entries += self._gap
        self._taken += 1
        if self._taken % SAMPLES_PER_GAP == 0:
            self._gap *= 2
        self._seed = (self._seed * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        return 1 + (self._seed >> 8) % (2 * self._gap - 1)

    def _sample(self, messages: int, payload: Payload) -> None:
        weight = self._gap * float(len(payload) if self._by_bytes else max(messages, 1))
        try:
            most = LARGE_MESSAGES_MAX if self._taken < LARGE_SAMPLES else BATCH_MESSAGES_MAX
            keys = list(_keys_of(payload, most))
        except ProtocolError:
            return  # unreadable for the broker: left to the consumers
        for key in keys:
            self._add(key, weight / len(keys))

    def _add(self, key: str | None, weight: float) -> None:
        self._keys += 1
        if not self._slots:
            self._slots = [0.0] * SLOTS
        position = None if key is None else self._ring_hash.ring_position(murmur3_32(key))
        if position is None or position not in self._range:
            for slot in range(SLOTS):
                self._slots[slot] += weight / SLOTS
            return
        assert key is not None, "it has a position"
        self._slots[(position - self._range.start) * SLOTS // self._range.size] += weight
        if position not in self._weights:
            self._texts[position] = key[:SAMPLED_KEY_CHARS_MAX] if self._shows_keys else ""
        self._weights[position] = self._weights.get(position, 0.0) + weight

    # looks ------------------------------------------------------------------------------------------------------------
    def look(self, *, by_bytes: bool) -> None:
        """Called at each look: older samples lose weight. `by_bytes`: whether bytes decide, not messages."""
        if by_bytes != self._by_bytes:
            self._by_bytes = by_bytes
            self._clear()
        self._gap = max(1, self._entries // SAMPLES_PER_LOOK)
        self.left = min(self.left, self._gap)
        self._taken = self._entries = 0
        self._keys *= DECAY
        self._slots = [weight * DECAY for weight in self._slots]
        kept = sorted(self._weights, key=lambda position: -self._weights[position])[:KEYS_MAX]
        self._weights = {position: self._weights[position] * DECAY for position in kept}
        self._texts = {position: self._texts[position] for position in kept}

    def histogram(self) -> tuple[float, ...]:
        """Load by slot; empty if too little is known."""
        total = sum(self._slots)
        if self._keys < KEYS_MIN or not total > 0:
            return ()
        return tuple(float(round(HISTOGRAM_SUM * weight / total)) for weight in self._slots)

    def hot_key(self) -> HotKey | None:
        """The ring position with the largest share of the load, if the share is worth mentioning."""
        total = sum(self._slots)
        if self._keys < HOT_KEYS_MIN or not self._weights or not total > 0:
            return None
        position = max(self._weights, key=lambda one: (self._weights[one], -one))
        share = min(self._weights[position] / total, 1.0)
        return HotKey(position, round(share, 3), self._texts[position]) if share >= HOT_SHARE_MIN else None


def _keys_of(payload: Payload, most: int) -> Iterator[str | None]:
    """The keys of an entry, or of a sample of it; None for a message without key. Raises ProtocolError."""
    of, body = entry.parts(payload)
    first = None if _is_keyless(of) else of.partition_key
    is_readable = of.compression == 0 and not of.encryption_keys
    if not (of.HasField("num_messages_in_batch") and is_readable):
        yield first
        return
    for single in entry.first_messages(of, body, most):
        yield None if _is_keyless(single) else single.partition_key


def _is_keyless(of: pb.MessageMetadata | pb.SingleMessageMetadata) -> bool:
    return not of.HasField("partition_key") or of.partition_key_b64_encoded or of.null_partition_key
