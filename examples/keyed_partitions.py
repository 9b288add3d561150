"""A partitioned topic: every key stays in order while the partitions share the load.

The partitions are created over REST; a message's key decides its partition, and Key_Shared lets several consumers of
one subscription divide the keys among themselves.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
import uuid
from collections import defaultdict

import pulsar

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
ADMIN_URL = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("ANABRANCH_ADMIN_URL", "http://localhost:8080")
PARTITIONS, KEYS, PER_KEY = 4, 20, 25


def create_partitioned(local_name: str, partitions: int) -> None:
    url = f"{ADMIN_URL}/admin/v2/persistent/public/default/{local_name}/partitions"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(partitions).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=10):
        print(f"created {local_name} with {partitions} partitions")


def main() -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_partitioned(name, PARTITIONS)
    topic = f"persistent://public/default/{name}"
    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    kind = pulsar.ConsumerType.KeyShared
    workers = [client.subscribe(topic, "billing", kind, consumer_name=f"worker-{n}") for n in range(2)]

    # Key_Shared needs all messages of one batch to have one key: KeyBased batching takes care of it.
    producer = client.create_producer(topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased)
    for n in range(KEYS * PER_KEY):
        producer.send_async(str(n // KEYS).encode(), None, partition_key=f"customer-{n % KEYS}")
    producer.flush()

    seen: dict[str, list[int]] = defaultdict(list)
    shares = [0] * len(workers)
    while sum(shares) < KEYS * PER_KEY:
        for n, worker in enumerate(workers):
            try:
                message = worker.receive(timeout_millis=10)
            except pulsar.Timeout:
                continue
            seen[message.partition_key()].append(int(message.data()))
            worker.acknowledge(message)
            shares[n] += 1
    ordered = all(numbers == list(range(PER_KEY)) for numbers in seen.values())
    print(f"{sum(shares)} messages of {len(seen)} keys, workers got {shares}, every key in order: {ordered}")
    client.close()
    sys.exit(0 if ordered and len(seen) == KEYS else 1)


if __name__ == "__main__":
    main()
