"""Deduplication must not take key-based batches for duplicates: their sequence ids interleave (0,2,3,4 …; 1)."""

from __future__ import annotations

import urllib.request
import uuid

import pulsar

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client


def test_interleaved_batches_are_all_stored(broker: BrokerProcess) -> None:
    namespace = f"public/dedup-{uuid.uuid4().hex[:8]}"
    for method, path, body in (("PUT", "", b"{}"), ("POST", "/deduplication", b"true")):
        url, headers = f"{broker.http_url}/admin/v2/namespaces/{namespace}{path}", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=10):
            pass
    topic = f"persistent://{namespace}/keyed"
    client = new_client(broker.service_url)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_messages=30,
        batching_max_publish_delay_ms=5_000,
    )
    for n in range(30):
        producer.send_async(str(n).encode(), None, partition_key="rare" if n == 1 else "busy")
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = set()
    while reader.has_message_available():
        found.add(int(reader.read_next(timeout_millis=10_000).data()))
    client.close()
    assert found == set(range(30))
