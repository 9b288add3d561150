"""State machine of a client connection: bytes and ticks in, events out."""

from __future__ import annotations

import pytest

from anabranch.client.connection.connection_state import (
    Answered,
    Broken,
    Challenged,
    ConnectionState,
    Event,
    Failed,
    ForConsumer,
    ForProducer,
    Opened,
    State,
    Write,
)
from anabranch.client.errors import NotAuthenticated, TimedOut, TopicNotFound, Unreachable, WrongPort
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand, frame, message_header, read_command, receipt_frame
from anabranch.protocol.frames import FrameDecoder
from anabranch.protocol.server_errors import ServerError

CONNECTED = replies.connected("test", 21, 1 << 20)


def commands(data: bytes) -> list[tuple[int, object]]:
    return [read_command(one.command) for one in FrameDecoder(1 << 20).feed(data)]


def opened(now: float = 0.0) -> ConnectionState:
    connection = ConnectionState(keepalive_s=30)
    connection.start(now)
    assert isinstance(connection.feed(CONNECTED, now)[0], Opened)
    return connection


def test_handshake_opens_the_connection() -> None:
    connection = ConnectionState()
    ((kind, body),) = commands(connection.start(0.0, auth_method="token", auth_data=b"secret"))
    assert kind == BaseCommand.CONNECT
    assert isinstance(body, pb.CommandConnect)
    assert (body.auth_method_name, body.auth_data) == ("token", b"secret")
    (event,) = connection.feed(CONNECTED, 0.0)
    assert isinstance(event, Opened) and event.message_bytes_max == 1 << 20
    assert connection.state is State.OPEN


def test_refused_handshake_breaks_the_connection() -> None:
    connection = ConnectionState()
    connection.start(0.0)
    (event,) = connection.feed(replies.error(0, ServerError.AuthenticationError, "who are you"), 0.0)
    assert isinstance(event, Broken) and isinstance(event.error, NotAuthenticated)
    assert connection.feed(CONNECTED, 0.0) == []


def test_answers_in_any_order_match_their_requests() -> None:
    connection = opened()
    first, data = connection.request(BaseCommand.LOOKUP, 10.0, topic="a")
    assert commands(data)[0][0] == BaseCommand.LOOKUP
    second, _ = connection.request(BaseCommand.LOOKUP, 10.0, topic="b")
    third, _ = connection.request(BaseCommand.LOOKUP, 10.0, topic="c")
    assert len({first, second, third}) == 3
    connection.forget(third)
    events = connection.feed(
        replies.error(second, ServerError.TopicNotFound, "no b") + replies.success(first) + replies.success(third), 0.0
    )
    failed, answered = events
    assert isinstance(failed, Failed) and isinstance(failed.error, TopicNotFound) and failed.request_id == second
    assert isinstance(answered, Answered) and answered.request_id == first
    assert connection.feed(replies.success(first), 0.0) == [], "a second answer is ignored"


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_events_do_not_depend_on_how_bytes_are_split(chunk: int) -> None:
    connection = opened()
    data = replies.ping() + receipt_frame(4, 0, 1, 2) + message_header(5, 9, 1, 2) + b"entry" + replies.pong()
    events: list[Event] = []
    for start in range(0, len(data), chunk):
        events += connection.feed(data[start : start + chunk], 1.0)
    pong, receipt, message = events
    assert pong == Write(replies.pong())
    assert isinstance(receipt, ForProducer) and receipt.producer_id == 4
    assert isinstance(message, ForConsumer) and (message.consumer_id, message.payload) == (9, b"entry")


def test_request_fails_at_its_deadline() -> None:
    connection = opened()
    late, _ = connection.request(BaseCommand.LOOKUP, 5.0, topic="a")
    connection.request(BaseCommand.LOOKUP, 9.0, topic="b")
    assert connection.next_tick() == 5.0
    assert connection.tick(4.9) == []
    (event,) = connection.tick(5.0)
    assert isinstance(event, Failed) and event.request_id == late and isinstance(event.error, TimedOut)
    assert connection.next_tick() == 9.0


def test_silent_broker_gets_one_ping_then_connection_breaks() -> None:
    connection = opened(now=100.0)
    assert connection.next_tick() == 130.0
    assert connection.tick(129.0) == []
    assert connection.tick(130.0) == [Write(replies.ping())]
    assert connection.tick(131.0) == []
    connection.feed(replies.pong(), 140.0)
    assert connection.tick(169.0) == []
    assert connection.tick(170.0) == [Write(replies.ping())]
    request, _ = connection.request(BaseCommand.LOOKUP, 999.0, topic="a")
    failed, broken = connection.tick(200.0)
    assert isinstance(failed, Failed) and failed.request_id == request
    assert isinstance(broken, Broken) and isinstance(broken.error, Unreachable)


def test_connection_breaks_only_once() -> None:
    connection = opened()
    request, _ = connection.request(BaseCommand.LOOKUP, 9.0, topic="a")
    failed, broken = connection.lost("gone")
    assert isinstance(failed, Failed) and failed.request_id == request
    assert isinstance(broken, Broken)
    assert connection.lost("again") == connection.tick(1000.0) == []


def test_garbage_breaks_the_connection_without_an_exception() -> None:
    (event,) = opened().feed(b"\xff" * 64, 0.0)
    assert isinstance(event, Broken)


@pytest.mark.parametrize(
    ("answer", "words"), [(b"HTTP/1.1 400 Bad Request\r\n", "HTTP port"), (b"\x15\x03\x01\x00\x02\x02\x46", "TLS")]
)
def test_another_protocol_in_the_handshake_is_recognised(answer: bytes, words: str) -> None:
    connection = ConnectionState()
    connection.start(0.0)
    (event,) = connection.feed(answer, 0.0)
    assert isinstance(event, Broken) and isinstance(event.error, WrongPort) and words in event.error.reason
    (later,) = opened().feed(answer, 0.0)
    assert isinstance(later, Broken) and isinstance(later.error, Unreachable), "such bytes are no handshake later"


def test_auth_challenge_is_reported_as_event() -> None:
    connection = opened()
    (event,) = connection.feed(replies.auth_refresh("test", 21, "token"), 0.0)
    assert event == Challenged(replies.AUTH_REFRESH)
    ((kind, body),) = commands(connection.auth_response("token", b"new"))
    assert kind == BaseCommand.AUTH_RESPONSE
    assert isinstance(body, pb.CommandAuthResponse) and body.response.auth_data == b"new"


def test_producer_not_ready_is_not_an_answer() -> None:
    connection = opened()
    request, _ = connection.request(BaseCommand.PRODUCER, 9.0, topic="a", producer_id=1)

    def success(is_ready: bool) -> bytes:
        body = pb.CommandProducerSuccess(request_id=request, producer_name="p", producer_ready=is_ready)
        return frame(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=body))

    assert connection.feed(success(False), 0.0) == []
    assert isinstance(connection.feed(success(True), 0.0)[0], Answered)
