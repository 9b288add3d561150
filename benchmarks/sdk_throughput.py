"""The SDK against the stock wheel, message for message, on our broker: `python -m benchmarks.sdk_throughput`.

Expected before measuring: the wheel needs 4.5 µs of one core per message to send (half of it in Python, `_build_msg`),
18 µs with a Python callback, because a thread of C++ takes the interpreter's lock each time, and 3.5 µs to receive and
acknowledge. The SDK in Python needs about 2.7 µs to send, 3.5 µs with the result read, 3 µs to receive and acknowledge
(2.2 µs with the codec in C): 1.6 ×, 5 ×, 1.1 ×. Bulk calls have a fixed price per entry of 1,000 messages, some 30 µs,
and per message that of the codec and of moving the bytes: 1 µs in Python, 0.2 µs in C, so 3 × and 15 ×.

`benchmarks.sdk.clients` describes the work of each side. Sides take turns, each in a separate process; the broker is
another process, and all share the cores. Each comparison has a second line with the CPU time per message of client
*and* broker, SDK against wheel. On a busy machine it is more reliable than messages per second, because a client with
more threads gets a larger share of the cores (the wheel has several threads, the SDK one).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from anabranch.protocol.codec.core import NATIVE
from benchmarks.sdk.clients import BULK_ROWS
from benchmarks.support import report
from benchmarks.support.floors import ROOT
from benchmarks.support.measure import Outcome, Run, Scene, Series, at_least, process_cpu_seconds, side_by_side
from tests.support.processes.broker_process import BrokerProcess

PATIENCE_S = 600
WHEEL_MESSAGES, WHEEL_RESULTS = 300_000, 100_000


@dataclass
class Side:
    """Measures one role repeatedly, each time on a new topic."""

    broker: BrokerProcess
    role: str
    count: int
    codec: str = "native"
    cpu_us: list[float] = field(default_factory=list)
    broker_cpu_us: list[float] = field(default_factory=list)
    number: int = 0

    def __call__(self) -> float:
        """Messages per second."""
        self.number += 1
        topic = f"sdk-{self.role}-{self.codec}-{self.number}"
        if "consume" in self.role:
            worked(self.broker.service_url, "bulk-publish", topic, self.count)
        used = partial(process_cpu_seconds, self.broker.pid)
        taken = worked(self.broker.service_url, self.role, topic, self.count, self.codec, used)
        self.cpu_us.append(taken.cpu_s / self.count * 1e6)
        self.broker_cpu_us.append(taken.server_cpu_s / self.count * 1e6)
        return self.count / taken.seconds

    @property
    def all_cpu_us(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(self.cpu_us, self.broker_cpu_us, strict=True)))


class Taken(NamedTuple):
    """Elapsed time, CPU time of the client and CPU time of the server."""

    seconds: float
    cpu_s: float
    server_cpu_s: float


def worked(
    url: str,
    role: str,
    topic: str,
    count: int,
    codec: str = "native",
    server_cpu_s: Callable[[], float] = lambda: 0.0,
    module: str = "benchmarks.sdk.clients",
) -> Taken:
    """Runs one client process."""
    command = [sys.executable, "-m", module, role, url, topic, str(count)]
    environment = {**os.environ, "ANABRANCH_CODEC": codec}
    before = 0.0
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                before = server_cpu_s()
                process.stdin.write("\n")
                process.stdin.flush()
            elif line.startswith("took "):
                seconds, cpu_s = map(float, line.split()[1:])
                taken = Taken(seconds, cpu_s, server_cpu_s() - before)
                process.wait(PATIENCE_S)
                return taken
    raise RuntimeError(f"{role} ended with {process.returncode} before it had done its work")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the SDK does, what the wheel does for it, and how much more of it per second."""

    title: str
    role: str
    wheel: str
    goal: float
    count: int
    codec: str = "native"

    @property
    def is_possible(self) -> bool:
        return self.codec == "python" or NATIVE is not None or not self.role.startswith("bulk")


def measured(name: str, one: Comparison, scene: Scene) -> list[Outcome]:
    if not one.is_possible:
        return []  # built without a compiler
    wheel_count = WHEEL_RESULTS if "results" in one.wheel else WHEEL_MESSAGES
    with BrokerProcess(scene.place(name) / "data") as broker:
        ours = Side(broker, one.role, scene.size(one.count, BULK_ROWS), one.codec)
        wheel = Side(broker, one.wheel, scene.size(wheel_count, BULK_ROWS))
        rates, floors = side_by_side(scene.size(5, 1), ours, wheel)
    notes = {
        "messages": ours.count,
        "cpu_us_per_message": ours.cpu_us,
        "wheel_cpu_us_per_message": wheel.cpu_us,
        "broker_cpu_us_per_message": ours.broker_cpu_us,
        "wheel_broker_cpu_us_per_message": wheel.broker_cpu_us,
        "codec": one.codec if NATIVE is not None else "python",
    }
    return [
        Outcome(
            name,
            one.title,
            Series("SDK", "msg/s", rates),
            Series("wheel", "msg/s", floors),
            at_least(one.goal),
            notes,
        ),
        Outcome(
            f"{name}-cpu",
            "  CPU of client and broker",
            Series("SDK", "µs/msg", ours.all_cpu_us),
            Series("wheel", "µs/msg", wheel.all_cpu_us),
            None,
        ),
    ]


MILLION = 1_000_000
COMPARISONS = {
    "publish": Comparison("publish 100 B keyed", "publish", "wheel-publish", 1, 300_000, "python"),
    "publish-results": Comparison(
        "the same, a result for every message", "publish-results", "wheel-publish-results", 3, 200_000, "python"
    ),
    "consume": Comparison("receive and acknowledge 100 B", "consume", "wheel-consume", 1, 300_000),
    "consume-python": Comparison("the same, codec in Python", "consume", "wheel-consume", 1, 300_000, "python"),
    "bulk-publish": Comparison("send_batch of lists", "bulk-publish", "wheel-publish", 10, 2 * MILLION),
    "bulk-publish-arrow": Comparison("send_batch of Arrow", "bulk-publish-arrow", "wheel-publish", 10, 2 * MILLION),
    "bulk-publish-python": Comparison(
        "of lists, codec in Python", "bulk-publish", "wheel-publish", 2, 500_000, "python"
    ),
    "bulk-consume": Comparison("receive_batch to lists", "bulk-consume", "wheel-consume", 10, 2 * MILLION),
    "bulk-consume-arrow": Comparison("receive_batch to Arrow", "bulk-consume-arrow", "wheel-consume", 10, 2 * MILLION),
    "bulk-consume-python": Comparison(
        "to lists, codec in Python", "bulk-consume", "wheel-consume", 2, 500_000, "python"
    ),
    "bulk-consume-arrow-python": Comparison(
        "to Arrow, codec in Python", "bulk-consume-arrow", "wheel-consume", 2, 500_000, "python"
    ),
}
MEASURES: dict[str, Run] = {name: partial(measured, name, one) for name, one in COMPARISONS.items()}


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.sdk_throughput", MEASURES, arguments=arguments, mark="-sdk")


if __name__ == "__main__":
    raise SystemExit(main())
