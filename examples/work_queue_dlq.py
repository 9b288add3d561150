"""A work queue with retries and a dead-letter topic: what keeps failing is moved aside, the rest goes on."""

from __future__ import annotations

import os
import sys
import uuid

import pulsar

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
JOBS, ATTEMPTS_MAX = 10, 3


def work(job: str) -> None:
    if job == "job 7":
        raise ValueError("seven is cursed")


def main() -> None:
    topic = f"persistent://public/default/jobs-{uuid.uuid4().hex[:8]}"
    dead_topic = f"{topic}-dead"
    client = pulsar.Client(SERVICE_URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    dead = client.subscribe(dead_topic, "inspect")
    queue = client.subscribe(
        topic,
        "workers",
        pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=ATTEMPTS_MAX, dead_letter_topic=dead_topic, initial_subscription_name="inspect"
        ),
    )
    producer = client.create_producer(topic)
    for n in range(JOBS):
        producer.send(f"job {n}".encode())

    done = 0
    while done < JOBS - 1:
        message = queue.receive(timeout_millis=10_000)
        job = message.data().decode()
        try:
            work(job)
        except ValueError as error:
            print(f"failed    {job}, attempt {message.redelivery_count() + 1}: {error}")
            queue.negative_acknowledge(message)
            continue
        queue.acknowledge(message)
        done += 1
    print(f"done      {done} jobs")

    while True:  # the client moves the bad job when it comes once too often, which needs someone to keep receiving
        try:
            moved = dead.receive(timeout_millis=200)
            break
        except pulsar.Timeout:
            pass
        try:
            message = queue.receive(timeout_millis=200)
            print(f"failed    {message.data().decode()}, attempt {message.redelivery_count() + 1}")
            queue.negative_acknowledge(message)
        except pulsar.Timeout:
            pass
    print(f"dead      {moved.data().decode()} after {ATTEMPTS_MAX + 1} attempts")
    dead.acknowledge(moved)
    client.close()
    sys.exit(0 if moved.data() == b"job 7" else 1)


if __name__ == "__main__":
    main()
