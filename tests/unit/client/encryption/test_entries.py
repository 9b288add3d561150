"""Entries that a producer encrypts and a consumer decrypts: batches, single messages, chunks, bulk calls, failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anabranch.client.config import Batching
from anabranch.client.consumer.segment.effects import Deliver, Effect, Fail, Reject
from anabranch.client.consumer.segment.segment_consumer_state import SegmentConsumerState
from anabranch.client.encryption.data_key import DataKey
from anabranch.client.encryption.decryptor import Decryptor
from anabranch.client.encryption.entry_cipher import EntryCipher
from anabranch.client.encryption.options import CryptoFailure
from anabranch.client.messages.compression import Compression, packed
from anabranch.client.messages.message import Message
from anabranch.client.messages.outgoing import Entry, EntryFormat, OutgoingMessage
from anabranch.client.producer.open_batch import sealed
from anabranch.client.producer.segment_producer_state import SegmentProducerState, Transmit
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.codec import write
from anabranch.protocol.entry import metadata, seal_entry, split_batch
from anabranch.protocol.errors import OpaqueEntry

SECRET = bytes(range(32))
WRAPPED = [pb.EncryptionKeys(key="app", value=b"wrapped"), pb.EncryptionKeys(key="audit", value=b"for-audit")]


def cipher() -> EntryCipher:
    made = EntryCipher()
    made.use(DataKey(SECRET), WRAPPED)
    return made


def records(*values: bytes | None, key: str = "k") -> list[OutgoingMessage]:
    return [OutgoingMessage(number, value, key, {"p": "q"}) for number, value in enumerate(values)]


def reader(on_failure: CryptoFailure | None = CryptoFailure.FAIL, *, is_known: bool = True) -> SegmentConsumerState:
    decryptor = Decryptor(on_failure)
    if is_known:
        decryptor.unwrapped(b"for-audit", DataKey(SECRET))
    state = SegmentConsumerState("t", prefetch=100, decryptor=decryptor)
    state.opened()
    return state


def deliver(state: SegmentConsumerState, place: int, entry: bytes) -> Sequence[Effect]:
    identity = pb.MessageIdData(ledgerId=3, entryId=place)
    return state.delivered(pb.CommandMessage(consumer_id=1, message_id=identity), entry)


def messages(effects: Sequence[Effect]) -> list[Message]:
    return [message for effect in effects if isinstance(effect, Deliver) for message in effect.messages]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("count", [1, 3])
def test_any_recipient_reads_what_the_producer_sent(count: int, compression: Compression) -> None:
    body = b"plain text " * 1000
    entry = sealed(records(*[body] * count), EntryFormat("p", compression, cipher=cipher())).data
    assert b"plain text" not in entry
    with pytest.raises(OpaqueEntry):
        split_batch(entry)  # as a broker reads it
    assert [one.data for one in messages(deliver(reader(), 0, entry))] == [body] * count
    of = metadata(entry)
    assert [(one.key, one.value) for one in of.encryption_keys] == [("app", b"wrapped"), ("audit", b"for-audit")]


def test_no_nonce_is_used_twice_with_one_data_key() -> None:
    style = EntryFormat("p", cipher=cipher())
    entries = [sealed(records(b"same"), style).data for _ in range(300)]
    assert len({metadata(entry).encryption_param for entry in entries}) == 300
    assert len(set(entries)) == 300


def test_null_values_keys_and_properties_stay() -> None:
    style = EntryFormat("p", cipher=cipher())
    for values in ((None,), (b"", None, b"x")):
        found = messages(deliver(reader(), 0, sealed(records(*values), style).data))
        assert [one.value for one in found] == list(values)
        assert {(one.key, one.properties["p"]) for one in found} == {("k", "q")}


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZLIB])
def test_rows_of_a_bulk_call_are_encrypted(compression: Compression) -> None:
    def shrunk(body: bytes | bytearray) -> tuple[int, bytes]:
        kind, made = packed(bytes(body), compression)
        return kind.number, made

    values = [b"row %d " % row * 700 for row in range(5)]
    (entries,) = write(
        values,
        ["k"] * 5,
        producer_name="p",
        publish_time=1,
        messages_max=4,
        compressed=shrunk,
        encrypted=cipher().encrypted,
    )
    state = reader()
    found = [one for place, entry in enumerate(entries) for one in messages(deliver(state, place, entry.data))]
    assert [one.data for one in found] == values and len(entries) == 2
    assert not any(b"row " in entry.data for entry in entries)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZLIB])
def test_chunks_are_encrypted_one_by_one_and_fit_the_limit(compression: Compression) -> None:
    limit = 4096
    body = bytes(range(256)) * 100 if compression is Compression.NONE else b"".join(b"%d" % n for n in range(30_000))
    entries = chunked(body, limit, compression, cipher())
    assert len(entries) > 3 and all(one.size <= limit for one in entries)
    assert len({metadata(one.data).encryption_param for one in entries}) == len(entries)
    state = reader()
    found = [one for place, entry in enumerate(entries) for one in messages(deliver(state, place, entry.data))]
    assert [one.data for one in found] == [body]


def chunked(body: bytes, limit: int, compression: Compression, with_cipher: EntryCipher) -> list[Entry]:
    state = SegmentProducerState(EntryFormat("p", compression, chunk_bytes=limit, cipher=with_cipher), Batching())
    state.opened(limit)
    effects = state.append(OutgoingMessage(0, body, "k"))
    return [effect.entry for effect in effects if isinstance(effect, Transmit)]


def test_without_keys_a_message_fails_the_consumer_and_is_not_acknowledged() -> None:
    for state in (reader(None, is_known=False), reader(is_known=False)):
        entry = sealed(records(b"x"), EntryFormat("p", cipher=cipher())).data
        (failed,) = deliver(state, 0, entry)
        assert isinstance(failed, Fail)
        assert "encrypted for 'app', 'audit'" in failed.error.reason
        assert deliver(state, 1, sealed(records(b"y"), EntryFormat("p")).data) == []
        assert state.flush() == []


def test_discarded_message_is_acknowledged_with_the_reason() -> None:
    state = reader(CryptoFailure.DISCARD, is_known=False)
    (rejected,) = deliver(state, 0, sealed(records(b"x"), EntryFormat("p", cipher=cipher())).data)
    assert isinstance(rejected, Reject)
    assert (rejected.id.entryId, rejected.problem) == (0, pb.CommandAck.DecryptionError)
    plain = deliver(state, 1, sealed(records(b"y"), EntryFormat("p")).data)
    assert [one.data for one in messages(plain)] == [b"y"]


@pytest.mark.parametrize("count", [1, 3])
def test_delivered_ciphertext_has_what_is_needed_to_decrypt_it(count: int) -> None:
    state = reader(CryptoFailure.DELIVER, is_known=False)
    style = EntryFormat("p", Compression.ZLIB, cipher=cipher())
    (one,) = messages(deliver(state, 0, sealed(records(*[b"plain " * 1000] * count), style).data))
    context = one.encryption
    assert context is not None and one.id.batch_index == -1
    assert {name: key.value for name, key in context.keys.items()} == {"app": b"wrapped", "audit": b"for-audit"}
    assert (context.compression, context.batch_size) == ("ZLIB", 0 if count == 1 else 3)
    assert DataKey(SECRET).decrypted(context.param, one.data) is not None
    assert state.ack(one.id) and len(state.flush()) == 1


def test_changed_ciphertext_or_metadata_is_noticed() -> None:
    entry = sealed(records(b"x" * 100), EntryFormat("p", cipher=cipher()))
    damaged = bytearray(entry.body)
    damaged[5] ^= 1
    of = metadata(entry.data)
    (failed,) = deliver(reader(), 0, seal_entry(of, bytes(damaged)))
    assert isinstance(failed, Fail) and "damaged, or was changed" in failed.error.reason
    of.encryption_param = b"short"
    (failed,) = deliver(reader(), 0, seal_entry(of, bytes(entry.body)))
    assert isinstance(failed, Fail)
