"""Send ten messages, receive and acknowledge them: the smallest complete program.

anabranch standalone                      # in another terminal
python examples/produce_consume.py        # or with a service URL as first argument
"""

from __future__ import annotations

import os
import sys
import uuid

import pulsar

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")


def main() -> None:
    topic = f"persistent://public/default/greetings-{uuid.uuid4().hex[:8]}"
    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "readers")  # subscribed first: a new subscription starts at the latest message
    producer = client.create_producer(topic)
    for n in range(10):
        message_id = producer.send(f"hello {n}".encode(), properties={"n": str(n)})  # returns once it is on disk
        print(f"sent      {n} as {message_id}")
    for _ in range(10):
        message = consumer.receive(timeout_millis=10_000)
        print(f"received  {message.data().decode()} {message.properties()}")
        consumer.acknowledge(message)
    client.close()


if __name__ == "__main__":
    main()
