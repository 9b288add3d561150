"""A reader: no subscription, no acknowledgement, from any place in the topic. Here: replay all, then from a place."""

from __future__ import annotations

import os
import sys
import uuid

import pulsar

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")


def replay(client: pulsar.Client, topic: str, start: pulsar.MessageId) -> list[str]:
    reader = client.create_reader(topic, start)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(timeout_millis=10_000).data().decode())
    reader.close()
    return found


def main() -> None:
    topic = f"persistent://public/default/ledger-{uuid.uuid4().hex[:8]}"
    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic)
    ids = [producer.send(f"line {n}".encode()) for n in range(10)]

    whole = replay(client, topic, pulsar.MessageId.earliest)
    print(f"from the beginning: {len(whole)} lines, {whole[0]} … {whole[-1]}")

    saved = ids[5].serialize()  # bytes: keep them wherever you like
    rest = replay(client, topic, pulsar.MessageId.deserialize(saved))
    print(f"after line 5: {', '.join(rest)}")
    client.close()
    sys.exit(0 if len(whole) == 10 and rest == [f"line {n}" for n in range(6, 10)] else 1)


if __name__ == "__main__":
    main()
