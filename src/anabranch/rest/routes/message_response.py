"""A stored entry as a response: the payload as body, the metadata as Pulsar's `X-Pulsar-…` headers."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

from anabranch.protocol import entry as entries
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.errors import BadEntry
from anabranch.rest.http_message import JSON, Response
from anabranch.storage.topic.topic_log import StoredEntry

BATCH_OVERHEAD = 10  # what Pulsar adds to a batch's size


def view(stored: StoredEntry) -> Response:
    try:
        of, payload = entries.opened(stored.payload)
    except BadEntry:
        return Response(200, bytes(stored.payload), JSON, _where(stored))
    return Response(200, payload, JSON, (*_where(stored), *_known(of), *_special(of, len(payload))))


def _where(stored: StoredEntry) -> tuple[tuple[str, str], ...]:
    return (("X-Pulsar-Message-ID", f"{stored.position.ledger}:{stored.position.entry}"),)


def _known(of: pb.MessageMetadata) -> list[tuple[str, str]]:
    properties = {pair.key: pair.value for pair in of.properties}
    if of.num_chunks_from_msg > 1:
        properties |= {"TOTAL-CHUNKS": str(of.num_chunks_from_msg), "CHUNK-ID": str(of.chunk_id)}
    return [
        ("X-Pulsar-PROPERTY", json.dumps(properties)),
        ("X-Pulsar-publish-time", when(of.publish_time)),
        ("X-Pulsar-producer-name", header_text(of.producer_name)),
        ("X-Pulsar-sequence-id", str(of.sequence_id)),
        ("X-Pulsar-Is-Encrypted", str(bool(of.encryption_keys)).lower()),
        ("X-Pulsar-txn-uncommitted", "false"),
    ]


def _special(of: pb.MessageMetadata, size: int) -> list[tuple[str, str]]:
    found = []
    if of.event_time:
        found.append(("X-Pulsar-event-time", when(of.event_time)))
    if of.HasField("deliver_at_time"):
        found.append(("X-Pulsar-deliver-at-time", when(of.deliver_at_time)))
    if of.HasField("partition_key"):
        found.append(("X-Pulsar-partition-key", header_text(of.partition_key)))
    if of.HasField("ordering_key"):
        found.append(("X-Pulsar-Base64-ordering-key", base64.b64encode(of.ordering_key).decode()))
    if of.HasField("schema_version"):
        found.append(("X-Pulsar-Base64-schema-version", base64.b64encode(of.schema_version).decode()))
    if of.HasField("null_value"):
        found.append(("X-Pulsar-null-value", str(of.null_value).lower()))
    if of.replicate_to:
        found.append(("X-Pulsar-replicated-to", header_text(",".join(of.replicate_to))))
    if of.compression != pb.NONE:
        found.append(("X-Pulsar-compression", pb.CompressionType.Name(of.compression)))
        found.append(("X-Pulsar-uncompressed-size", str(of.uncompressed_size)))
    if of.HasField("num_messages_in_batch"):
        found.append(("X-Pulsar-num-batch-message", str(of.num_messages_in_batch)))
        found.append(("X-Pulsar-batch-size", str(size + BATCH_OVERHEAD)))
    if of.num_chunks_from_msg > 1:
        found.append(("X-Pulsar-PROPERTY-TOTAL-CHUNKS", str(of.num_chunks_from_msg)))
        found.append(("X-Pulsar-PROPERTY-CHUNK-ID", str(of.chunk_id)))
        found.append(("X-Pulsar-uuid", header_text(of.uuid)))
        found.append(("X-Pulsar-num-chunks-from-msg", str(of.num_chunks_from_msg)))
        found.append(("X-Pulsar-total-chunk-msg-size", str(of.total_chunk_msg_size)))
        found.append(("X-Pulsar-chunk-id", str(of.chunk_id)))
    return found


def when(ms: int) -> str:
    """ISO 8601 with Z; a number out of range unchanged."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def header_text(text: str) -> str:
    """A client's text as a header value; anything but printable ASCII is escaped."""
    return "".join(c if 32 <= ord(c) < 127 else ascii(c)[1:-1] for c in text)
