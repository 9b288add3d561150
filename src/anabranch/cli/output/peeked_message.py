"""A stored entry as the admin REST shows it (payload as body, the rest in headers) as messages for people. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any

from anabranch.admin.client import Answer
from anabranch.model.errors import Error
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import seal_entry, split_batch


def messages_of(answer: Answer) -> list[dict[str, Any]]:
    """The messages of one entry; a batch that cannot be split is shown as it is."""
    headers = answer.headers
    place = headers.get("x-pulsar-message-id", "?")
    known = {
        "publish_time": headers.get("x-pulsar-publish-time"),
        "producer": headers.get("x-pulsar-producer-name"),
    }
    count = headers.get("x-pulsar-num-batch-message")
    if count is None:
        properties = json.loads(headers.get("x-pulsar-property", "{}"))
        key = headers.get("x-pulsar-partition-key")
        return [{"id": place, "key": key, **_payload(answer.body), **known, "properties": properties}]
    of = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0, num_messages_in_batch=int(count))
    try:
        batch = split_batch(seal_entry(of, answer.body, checksum=False))
    except Error:
        return [{"id": place, "key": None, **_payload(answer.body), **known, "properties": {}}]
    return [
        {
            "id": f"{place}:{index}",
            "key": single.partition_key if single.HasField("partition_key") else None,
            **_payload(data),
            **known,
            "properties": {pair.key: pair.value for pair in single.properties},
        }
        for index, (single, data) in enumerate(batch)
    ]


def _payload(data: bytes) -> dict[str, str]:
    try:
        return {"payload": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(data).decode()}
