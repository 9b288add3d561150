"""Frames that a broker sends: one function per command, values in, a complete frame out.

Receipts and messages, which exist once per entry, are in `commands`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.model.position import Position
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import NO_REQUEST, U64_MASK, BaseCommand, frame, message_id
from anabranch.protocol.server_errors import ServerError

PING_FRAME = frame(BaseCommand(type=BaseCommand.PING, ping=pb.CommandPing()))
PONG_FRAME = frame(BaseCommand(type=BaseCommand.PONG, pong=pb.CommandPong()))


def ping() -> bytes:
    return PING_FRAME


def pong() -> bytes:
    return PONG_FRAME


def connected(
    server_version: str, protocol_version: int, message_bytes_max: int, features: pb.FeatureFlags | None = None
) -> bytes:
    body = pb.CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=message_bytes_max,
        feature_flags=features,
    )
    return frame(BaseCommand(type=BaseCommand.CONNECTED, connected=body))


AUTH_REFRESH = b"PulsarAuthRefresh"


def auth_refresh(server_version: str, protocol_version: int, method: str) -> bytes:
    """Asks an open connection for new credentials; the client answers with AUTH_RESPONSE."""
    body = pb.CommandAuthChallenge(
        server_version=server_version,
        challenge=pb.AuthData(auth_method_name=method, auth_data=AUTH_REFRESH),
        protocol_version=protocol_version,
    )
    return frame(BaseCommand(type=BaseCommand.AUTH_CHALLENGE, auth_challenge=body))


def success(request_id: int, *, seek_count: int | None = None, generation: int | None = None) -> bytes:
    """The numbers are ours: for clients with our extensions only."""
    body = pb.CommandSuccess(request_id=request_id, seek_count=seek_count, generation=generation)
    return frame(BaseCommand(type=BaseCommand.SUCCESS, success=body))


def error(request_id: int, code: ServerError, text: str, migrated_to: str | None = None) -> bytes:
    """`migrated_to`: the topic was migrated, and this is its name as a scalable topic."""
    body = pb.CommandError(request_id=request_id & U64_MASK, error=code, message=text, migrated_to=migrated_to)
    return frame(BaseCommand(type=BaseCommand.ERROR, error=body))


def send_error(producer_id: int, sequence_id: int, code: ServerError, text: str) -> bytes:
    body = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=text)
    return frame(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=body))


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
    credit_bytes: int | None = None,
    credit_messages: int | None = None,
    ancestors: Iterable[pb.AncestorSequence] = (),
    last_note: bytes = b"",
) -> bytes:
    """With `ready=False` the producer waits for exclusive access; the same request id is answered again later."""
    body = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
        credit_bytes=credit_bytes,
        credit_messages=credit_messages,
        ancestors=ancestors,
        last_note=last_note or None,
    )
    return frame(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=body))


def lookup_connect(request_id: int, url: str, *, url_tls: str | None = None, authoritative: bool = True) -> bytes:
    return _lookup(
        pb.CommandLookupTopicResponse(
            request_id=request_id,
            brokerServiceUrl=url,
            brokerServiceUrlTls=url_tls,
            response=pb.CommandLookupTopicResponse.Connect,
            authoritative=authoritative,
        )
    )


def lookup_failed(request_id: int, code: ServerError, text: str) -> bytes:
    return _lookup(
        pb.CommandLookupTopicResponse(
            request_id=request_id, response=pb.CommandLookupTopicResponse.Failed, error=code, message=text
        )
    )


def _lookup(body: pb.CommandLookupTopicResponse) -> bytes:
    return frame(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookup_response=body))


def partitioned_metadata(request_id: int, partitions: int) -> bytes:
    """`partitions` of 0 means: not partitioned."""
    body = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return frame(BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitioned_metadata_response=body))


def partitioned_metadata_failed(request_id: int, code: ServerError, text: str, migrated_to: str | None = None) -> bytes:
    body = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=code,
        message=text,
        migrated_to=migrated_to,
    )
    return frame(BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitioned_metadata_response=body))


def close_producer(
    producer_id: int,
    *,
    request_id: int = NO_REQUEST,
    url: str | None = None,
    url_tls: str | None = None,
    code: ServerError | None = None,
    text: str | None = None,
) -> bytes:
    """The client re-creates the producer, at `url` if given. `code` and `text`, the reason, are only for peers with our
    extensions."""
    body = pb.CommandCloseProducer(
        producer_id=producer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=url,
        assignedBrokerServiceUrlTls=url_tls,
        error=code,
        message=text,
    )
    return frame(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=body))


def close_consumer(
    consumer_id: int, *, request_id: int = NO_REQUEST, url: str | None = None, url_tls: str | None = None
) -> bytes:
    """The client subscribes again, at `url` if given."""
    body = pb.CommandCloseConsumer(
        consumer_id=consumer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=url,
        assignedBrokerServiceUrlTls=url_tls,
    )
    return frame(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=body))


def ack_response(
    consumer_id: int, request_id: int, *, code: ServerError | None = None, text: str | None = None
) -> bytes:
    body = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=code, message=text)
    return frame(BaseCommand(type=BaseCommand.ACK_RESPONSE, ack_response=body))


def last_message_id(
    request_id: int,
    last: Position,
    *,
    batch_index: int = -1,
    partition: int = -1,
    mark_delete: Position | None = None,
) -> bytes:
    """The mark-delete position is sent only if it exists, because clients compare it with `last`."""
    body = pb.CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=message_id(last, partition=partition, batch_index=batch_index)
    )
    if mark_delete is not None and mark_delete.ledger >= 0:
        body.consumer_mark_delete_position.CopyFrom(message_id(mark_delete, partition=partition))
    return frame(BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, get_last_message_id_response=body))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """Statistics of one consumer for CONSUMER_STATS. Rates are per second."""

    consumer_name: str
    subscription_type: str
    address: str
    connected_since: str
    available_permits: int
    unacked_messages: int
    blocked_on_unacked: bool
    backlog: int
    rate_out: float = 0.0
    throughput_out: float = 0.0
    rate_redeliver: float = 0.0
    rate_expired: float = 0.0
    rate_ack: float = 0.0


def consumer_stats(request_id: int, stats: ConsumerStats) -> bytes:
    body = pb.CommandConsumerStatsResponse(
        request_id=request_id,
        msgRateOut=stats.rate_out,
        msgThroughputOut=stats.throughput_out,
        msgRateRedeliver=stats.rate_redeliver,
        consumerName=stats.consumer_name,
        availablePermits=max(0, stats.available_permits),
        unackedMessages=stats.unacked_messages,
        blockedConsumerOnUnackedMsgs=stats.blocked_on_unacked,
        address=stats.address,
        connectedSince=stats.connected_since,
        type=stats.subscription_type,
        msgRateExpired=stats.rate_expired,
        msgBacklog=stats.backlog,
        messageAckRate=stats.rate_ack,
    )
    return frame(BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumer_stats_response=body))


def consumer_stats_failed(request_id: int, code: ServerError, text: str) -> bytes:
    body = pb.CommandConsumerStatsResponse(request_id=request_id, error_code=code, error_message=text)
    return frame(BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumer_stats_response=body))


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    body = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return frame(BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=body))


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Never sent to a C++ client, which does not know it and would drop the connection."""
    body = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return frame(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reached_end_of_topic=body))


def topics_of_namespace(
    request_id: int,
    topics: Iterable[str],
    *,
    topics_hash: str | None = None,
    filtered: bool = False,
    changed: bool = True,
) -> bytes:
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, topics_hash=topics_hash, filtered=filtered, changed=changed
    )
    return frame(BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, get_topics_of_namespace_response=body))


def topic_list_watched(request_id: int, watcher_id: int, topics: Iterable[str], *, topics_hash: str) -> bytes:
    """The answer to WATCH_TOPIC_LIST; without topics if the client has them already."""
    body = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return frame(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS, watch_topic_list_success=body))


def topic_list_update(watcher_id: int, added: Iterable[str], deleted: Iterable[str], *, topics_hash: str) -> bytes:
    body = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=added, deleted_topics=deleted, topics_hash=topics_hash
    )
    return frame(BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE, watch_topic_update=body))


def schema(
    request_id: int, *, name: str, type_number: int, data: bytes, properties: Mapping[str, str], version: bytes
) -> bytes:
    """`type_number` is the wire's, which `model.schema.SchemaType` shares."""
    found = pb.Schema(name=name, schema_data=data, type=pb.Schema.Type.Name(type_number))
    for key, value in properties.items():
        found.properties.add(key=key, value=value)
    body = pb.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version)
    return frame(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, get_schema_response=body))


def get_or_create_schema(request_id: int, version: bytes) -> bytes:
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return frame(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=body))


def get_or_create_schema_failed(request_id: int, code: ServerError, text: str) -> bytes:
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=code, error_message=text)
    return frame(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=body))


def schema_failed(request_id: int, code: ServerError, text: str) -> bytes:
    """The answer to GET_SCHEMA when there is no schema."""
    body = pb.CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=text)
    return frame(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, get_schema_response=body))
