"""The handshake and keep-alive machines: events in, answers out."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import read_command
from anabranch.protocol.errors import HandshakeError, ProtocolError
from anabranch.protocol.frames import FrameDecoder
from anabranch.protocol.handshake import Beat, Handshake, Keepalive, broker_features, peer_of
from anabranch.protocol.replies import pong

BaseCommand = pb.BaseCommand


def hello(version: int = 20, client: str = "Pulsar-CPP-v4.2.0", **flags: bool) -> pb.CommandConnect:
    return pb.CommandConnect(client_version=client, protocol_version=version, feature_flags=pb.FeatureFlags(**flags))


def connected_by(handshake: Handshake, connect: pb.CommandConnect) -> Any:
    reply = handshake.answer(BaseCommand.CONNECT, connect)
    assert reply is not None
    (frame,) = FrameDecoder(10_000).feed(reply)
    kind, body = read_command(frame.command)
    assert kind == BaseCommand.CONNECTED
    return body


@pytest.mark.parametrize(("client", "agreed"), [(20, 20), (21, 21), (99, 21), (0, 0), (-5, 0)])
def test_the_smaller_version_counts(client: int, agreed: int) -> None:
    handshake = Handshake("Anabranch", 1000)
    body = connected_by(handshake, hello(client))
    assert (body.server_version, body.protocol_version, body.max_message_size) == ("Anabranch", agreed, 1000)
    assert handshake.peer is not None and handshake.peer.protocol_version == agreed


def test_features_offered() -> None:
    flags = connected_by(Handshake("Anabranch", 1000), hello()).feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation and flags.anabranch_extensions
    assert not flags.supports_topic_watchers and not flags.supports_scalable_topics
    assert not flags.supports_repl_dedup_by_lid_and_eid


def test_topic_list_watches_are_offered_where_they_are_served() -> None:
    assert broker_features(topic_watchers=True).supports_topic_watchers
    assert not broker_features().supports_topic_watchers


def test_ping_is_answered_before_and_after() -> None:
    handshake = Handshake("Anabranch", 1000)
    assert handshake.answer(BaseCommand.PING, pb.CommandPing()) == pong()
    assert handshake.peer is None
    connected_by(handshake, hello())
    assert handshake.answer(BaseCommand.PING, pb.CommandPing()) == pong()


def test_anything_else_first_is_a_violation() -> None:
    for kind in BaseCommand.Type.values():
        if kind not in (BaseCommand.PING, BaseCommand.CONNECT):
            with pytest.raises(HandshakeError) as caught:
                Handshake("Anabranch", 1000).answer(kind, None)
            assert isinstance(caught.value, ProtocolError)


def test_second_connect_is_a_violation() -> None:
    handshake = Handshake("Anabranch", 1000)
    connected_by(handshake, hello())
    with pytest.raises(HandshakeError):
        handshake.answer(BaseCommand.CONNECT, hello())


def test_open_connection_handles_its_commands() -> None:
    handshake = Handshake("Anabranch", 1000)
    connected_by(handshake, hello())
    assert handshake.answer(BaseCommand.SEND, pb.CommandSend(producer_id=1, sequence_id=1)) is None


def test_commands_a_client_version_can_read() -> None:
    cpp, java, old = peer_of(hello()), peer_of(hello(21, "Pulsar-Java-v4.0.0")), peer_of(hello(4, "Pulsar-Java-v1"))
    assert cpp.is_cpp and not java.is_cpp
    assert not cpp.understands(BaseCommand.REACHED_END_OF_TOPIC)
    assert java.understands(BaseCommand.REACHED_END_OF_TOPIC)
    assert cpp.understands(BaseCommand.ACTIVE_CONSUMER_CHANGE)
    assert not old.understands(BaseCommand.CLOSE_PRODUCER)
    assert not cpp.understands(BaseCommand.WATCH_TOPIC_UPDATE)


def test_anabranch_clients_announce_extensions() -> None:
    assert peer_of(hello(anabranch_extensions=True)).extensions
    assert not peer_of(hello()).extensions
    assert peer_of(hello(anabranch_message_nacks=True)).nacks_messages
    assert not peer_of(hello(anabranch_extensions=True)).nacks_messages
    assert not peer_of(pb.CommandConnect(client_version="x")).extensions


def test_silent_peer_is_closed_after_two_ticks() -> None:
    alive = Keepalive()
    assert [alive.tick(), alive.tick()] == [Beat.PING, Beat.CLOSE]


def test_any_received_byte_resets_keep_alive() -> None:
    alive = Keepalive()
    for _ in range(5):
        assert alive.tick() is Beat.PING
        assert alive.awaited
        alive.on_received()
        assert not alive.awaited


def test_silence_does_not_count_while_reading_is_paused() -> None:
    alive = Keepalive()
    assert alive.tick() is Beat.PING
    assert alive.tick(is_reading=False) is Beat.REST
    assert alive.tick() is Beat.CLOSE


def test_an_unfinished_handshake_ends_at_the_first_tick() -> None:
    assert Keepalive().tick(is_open=False) is Beat.CLOSE


def test_a_probe_counts_as_a_ping() -> None:
    alive = Keepalive()
    alive.probe()
    assert alive.tick() is Beat.CLOSE
