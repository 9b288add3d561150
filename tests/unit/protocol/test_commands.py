"""Commands: incomplete ones are refused, and the hot frames equal what plain protobuf writes."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model import errors as model_errors
from anabranch.model.position import EARLIEST, LATEST, Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol import replies
from anabranch.protocol.commands import (
    frame,
    frame_with_payload,
    message_header,
    message_id,
    position_of,
    read_command,
    receipt_frame,
    signed,
)
from anabranch.protocol.errors import BadCommand
from anabranch.protocol.frames import FrameDecoder
from anabranch.protocol.messages import MessageHeads
from anabranch.protocol.server_errors import SERVER_ERROR_BY_CODE, ServerError, server_error

BaseCommand = pb.BaseCommand


def parsed(data: bytes) -> tuple[int, Any]:
    """The single command of a complete frame."""
    (one,) = FrameDecoder(10_000).feed(data)
    assert one.payload is None
    return read_command(one.command)


def test_every_command_has_its_own_number_as_field() -> None:
    fields = {f.number: f.name for f in BaseCommand.DESCRIPTOR.fields}
    types = {number: name.lower() for name, number in BaseCommand.Type.items()}
    assert fields == {1: "type", **types}
    assert set(types) == {*range(2, 41), *range(50, 69), *range(70, 82), *range(200, 206), 240, 241}


def test_our_fields_start_at_1000() -> None:
    def numbers(message: Any) -> dict[str, int]:
        return {f.name: f.number for f in message.DESCRIPTOR.fields if f.number >= 1000}

    flags = {
        "anabranch_extensions": 1000,
        "anabranch_continuation": 1001,
        "anabranch_message_nacks": 1002,
        "anabranch_seek": 1003,
        "anabranch_hand_outs": 1004,
        "anabranch_migrated_edges": 1005,
    }
    assert numbers(pb.FeatureFlags) == flags
    said = {"credit_bytes": 1000, "credit_messages": 1001, "ancestors": 1010, "last_note": 1011}
    assert numbers(pb.CommandProducerSuccess) == said
    assert numbers(pb.CommandProducer) == {"fencing_epoch": 1000, "first_sequence_id": 1001}
    assert numbers(pb.MessageMetadata) == {"producer_note": 1000}
    assert numbers(pb.CommandFlow) == {"handed_out": 1000}
    assert numbers(pb.CommandSendReceipt) == {"credit_bytes": 1000, "credit_messages": 1001}


def test_read_gives_type_and_body() -> None:
    body = pb.CommandSend(producer_id=1, sequence_id=2, num_messages=3)
    kind, send = read_command(BaseCommand(type=BaseCommand.SEND, send=body).SerializeToString())
    assert (kind, send) == (BaseCommand.SEND, body)


def test_a_body_may_be_kept() -> None:
    first, second = parsed(replies.success(1)), parsed(replies.success(2))
    assert (first[1].request_id, second[1].request_id) == (1, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        b"\x08\x63",  # type 99
        b"\x08\x00",
        b"\x08\x02",  # CONNECT without its body
        b"\x08\x06",  # SEND without its body
        b"\x08\x06\x32\x02\x08\x01",  # SEND without a sequence id
        b"\x08\x06\x32\x02\x10\x01",  # SEND without a producer id
        b"\x08\x06\x32\x08\x08\x01\x10\x01\x4a\x02\x08\x01",  # SEND with half a message id
        b"\x08\x0b\x5a\x02\x08\x01",  # FLOW without permits
        b"\x08\x06\x3a\x04\x08\x01\x10\x01",  # type SEND, body of SEND_RECEIPT
        b"\x32\x04\x08\x01\x10\x01",  # body of SEND, no type
        b"\x12\x03\x0a\x01x",  # body of CONNECT, no type
        b"\x08\x63\x12\x03\x0a\x01x",  # body of CONNECT, type 99
        b"\x08\x25",  # AUTH_RESPONSE without its body, which has no required field
        b"\x08\x15\xaa\x01\x05\x0a\x01\xff\x10\x01",  # topic is not UTF-8
        b"\x08\x0a\x52\x08\x08\x01\x10\x00\x1a\x02\x08\x01",  # ACK with half a message id
    ],
)
def test_bad_commands(data: bytes) -> None:
    with pytest.raises(BadCommand):
        read_command(data)


def test_text_deep_inside_is_checked() -> None:
    good = pb.CommandProducer(topic="t", producer_id=1, request_id=1, metadata=[pb.KeyValue(key="abc", value="v")])
    data = BaseCommand(type=BaseCommand.PRODUCER, producer=good).SerializeToString()
    assert read_command(data)[1] == good
    with pytest.raises(BadCommand, match=r"KeyValue\.key"):
        read_command(data.replace(b"abc", b"a\xffc"))


def test_ping_and_pong_need_no_body() -> None:
    assert read_command(b"\x08\x12")[0] == BaseCommand.PING
    assert parsed(replies.ping())[0] == BaseCommand.PING
    assert parsed(replies.pong())[0] == BaseCommand.PONG


@pytest.mark.parametrize("partition", [-1, 0, 3])
@pytest.mark.parametrize("credits_given", [(0, 0), (100, 2)])
def test_receipt_equals_plain_protobuf(partition: int, credits_given: tuple[int, int]) -> None:
    body = pb.CommandSendReceipt(producer_id=3, sequence_id=2**40, highest_sequence_id=5)
    body.message_id.CopyFrom(message_id(Position(7, 123_456), partition=partition))
    if any(credits_given):
        body.credit_bytes, body.credit_messages = credits_given
    expected = frame(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=body))
    assert receipt_frame(3, 2**40, 7, 123_456, partition, 5, *credits_given) == expected


def test_receipt_of_a_duplicate() -> None:
    _, receipt = parsed(receipt_frame(1, 2, -1, -1))
    assert position_of(receipt.message_id) == EARLIEST
    assert not receipt.HasField("credit_bytes")


@given(
    st.integers(0, 2**40), st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**40), max_size=20), st.integers(-1, 300)
)
def test_message_heads_are_message_headers(consumer: int, ledger: int, entries: list[int], partition: int) -> None:
    heads = MessageHeads(consumer, ledger, partition)
    for entry in [*entries, 0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 5]:
        assert heads.head(entry, 11_000) == message_header(11_000, consumer, ledger, entry, partition)


@pytest.mark.parametrize("partition", [2, -1])
@pytest.mark.parametrize(
    ("redeliveries", "ack_set", "epoch"), [(0, None, None), (3, None, None), (0, [-1, 5], 0), (1, [2], 9)]
)
def test_message_header_equals_plain_protobuf(
    partition: int, redeliveries: int, ack_set: list[int] | None, epoch: int | None
) -> None:
    body = pb.CommandMessage(consumer_id=4, ack_set=ack_set, consumer_epoch=epoch)
    body.message_id.CopyFrom(message_id(Position(7, 2**35), partition=partition))
    if redeliveries:
        body.redelivery_count = redeliveries
    expected = frame_with_payload(BaseCommand(type=BaseCommand.MESSAGE, message=body), b"p" * 300)
    assert message_header(300, 4, 7, 2**35, partition, redeliveries, ack_set, epoch) + b"p" * 300 == expected


def test_hot_frames_of_two_threads_do_not_mix() -> None:
    wrong: list[int] = []

    def write(producer: int) -> None:
        # The partition changes each time: setting it is a call, where threads may switch.
        expected = [receipt_frame(producer, producer, producer, producer, partition) for partition in (0, 1)]
        for turn in range(20_000):
            made = receipt_frame(producer, producer, producer, producer, turn % 2)
            wrong.extend([producer] if made != expected[turn % 2] else [])

    threads = [threading.Thread(target=write, args=(producer,)) for producer in (1, 300, 70_000)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert parsed(receipt_frame(300, 1, 1, 1))[1].producer_id == 300
    assert wrong == []


def test_ids_carry_javas_longs() -> None:
    for position in (EARLIEST, LATEST, Position(0, 0), Position(5, -1)):
        assert position_of(message_id(position)) == position
    assert message_id(EARLIEST).ledgerId == 2**64 - 1
    assert not message_id(EARLIEST).HasField("partition")
    assert (signed(2**64 - 1), signed(2**63), signed(2**63 - 1)) == (-1, -(2**63), 2**63 - 1)


def test_replies_read_back() -> None:
    kind, body = parsed(replies.connected("Anabranch", 20, 5, pb.FeatureFlags(anabranch_extensions=True)))
    assert (kind, body.server_version, body.protocol_version, body.max_message_size) == (3, "Anabranch", 20, 5)
    assert body.feature_flags.anabranch_extensions and not body.feature_flags.supports_topic_watchers
    kind, body = parsed(replies.error(-1, ServerError.AuthenticationError, "no"))
    assert (kind, body.request_id, body.error, body.message) == (14, 2**64 - 1, 3, "no")
    kind, body = parsed(replies.success(0))
    assert (kind, body.HasField("request_id"), body.request_id) == (13, True, 0)
    kind, body = parsed(replies.producer_success(7, "p", last_sequence_id=-1, ready=False, credit_bytes=10))
    assert (kind, body.producer_name, body.last_sequence_id) == (17, "p", -1)
    assert (body.producer_ready, body.credit_bytes) == (False, 10)
    assert body.HasField("schema_version") and not body.HasField("topic_epoch") and not body.HasField("credit_messages")
    kind, body = parsed(replies.lookup_connect(2, "pulsar://h:1"))
    assert (kind, body.response, body.brokerServiceUrl, body.authoritative) == (24, 1, "pulsar://h:1", True)
    kind, body = parsed(replies.lookup_failed(2, ServerError.TopicNotFound, "gone"))
    assert (kind, body.response, body.error) == (24, 2, 11)
    kind, body = parsed(replies.partitioned_metadata(2, 0))
    assert (kind, body.HasField("response"), body.response, body.partitions) == (22, True, 0, 0)
    kind, body = parsed(replies.partitioned_metadata_failed(2, ServerError.TopicNotFound, "gone"))
    assert (kind, body.response, body.error) == (22, 1, 11)
    kind, body = parsed(replies.close_producer(9))
    assert (kind, body.producer_id, body.request_id) == (15, 9, 2**64 - 1)
    assert not body.HasField("assignedBrokerServiceUrl")
    kind, body = parsed(replies.close_consumer(9, url="pulsar://h:1"))
    assert (kind, body.consumer_id, body.assignedBrokerServiceUrl) == (16, 9, "pulsar://h:1")
    kind, body = parsed(replies.ack_response(1, 2))
    assert (kind, body.request_id, body.HasField("error")) == (38, 2, False)
    kind, body = parsed(replies.send_error(1, 2, ServerError.ChecksumError, "bad"))
    assert (kind, body.sequence_id, body.error) == (8, 2, 9)
    kind, body = parsed(replies.active_consumer_change(1, True))
    assert (kind, body.is_active) == (31, True)
    kind, body = parsed(replies.reached_end_of_topic(1))
    assert (kind, body.consumer_id) == (27, 1)
    kind, body = parsed(replies.topics_of_namespace(1, ["a", "b"], topics_hash="00"))
    assert (kind, list(body.topics), body.changed, body.filtered) == (33, ["a", "b"], True, False)
    kind, body = parsed(replies.schema_failed(1, ServerError.TopicNotFound, "none"))
    assert (kind, body.error_code) == (35, 11)


def test_last_message_id() -> None:
    kind, body = parsed(replies.last_message_id(1, EARLIEST, mark_delete=EARLIEST))
    assert (kind, position_of(body.last_message_id), body.last_message_id.batch_index) == (30, EARLIEST, -1)
    assert not body.HasField("consumer_mark_delete_position")
    _, body = parsed(
        replies.last_message_id(1, Position(3, 4), batch_index=9, partition=2, mark_delete=Position(3, -1))
    )
    assert (body.last_message_id.batch_index, body.last_message_id.partition) == (9, 2)
    assert position_of(body.consumer_mark_delete_position) == Position(3, -1)


def test_consumer_stats() -> None:
    stats = replies.ConsumerStats(
        consumer_name="c",
        subscription_type="Shared",
        address="1.2.3.4:5",
        connected_since="now",
        available_permits=-3,
        unacked_messages=2,
        blocked_on_unacked=True,
        backlog=8,
    )
    kind, body = parsed(replies.consumer_stats(1, stats))
    assert (kind, body.consumerName, body.type, body.availablePermits, body.msgBacklog) == (26, "c", "Shared", 0, 8)
    kind, body = parsed(replies.consumer_stats_failed(1, ServerError.ConsumerNotFound, "who"))
    assert (kind, body.error_code) == (26, 13)


def test_server_errors_follow_the_code_or_the_nearest_ancestor() -> None:
    class SubscriptionGone(model_errors.NotFound):
        code = "subscription-not-found"

    class Odd(model_errors.Busy):
        code = "odd-new-code"

    assert server_error(model_errors.NotFound("x")) == ServerError.TopicNotFound
    assert server_error(SubscriptionGone("x")) == ServerError.SubscriptionNotFound
    assert server_error(Odd("x")) == ServerError.ConsumerBusy
    assert server_error(model_errors.Error("x")) == ServerError.UnknownError
    assert server_error(BadCommand("x")) == ServerError.NotAllowedError


def test_every_model_error_is_mapped_explicitly() -> None:
    codes = {cls.code for cls in model_errors.Error.__subclasses__() if cls.__module__ == model_errors.__name__}
    assert codes <= SERVER_ERROR_BY_CODE.keys()
