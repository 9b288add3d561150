"""Child process: the blocking form runs a slow handler on two threads until it is interrupted."""

from __future__ import annotations

import sys
import time

import anabranch
from anabranch import Message


def handle(message: Message) -> None:
    number = message.value.decode()
    sys.stdout.write(f"begin {number}\n")  # one call per line, because two threads write
    sys.stdout.flush()
    time.sleep(0.5)
    sys.stdout.write(f"end {number}\n")
    sys.stdout.flush()


def main(service_url: str, topic: str) -> None:
    with (
        anabranch.blocking.connect(service_url) as client,
        client.queue_consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        try:
            consumer.run(handle, concurrency=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)


main(*sys.argv[1:])
