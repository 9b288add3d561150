"""`make soak`, part one: traffic of every kind (see `traffic`) while the broker is killed with -9, again and again.

The seed is printed; it repeats the plan, not the timing.
"""

from __future__ import annotations

import argparse
import functools
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pulsar

from tests.soak import traffic
from tests.soak.traffic import Traffic
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import rest
from tests.support.traffic.delivery_audit import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    kills: int
    kills_while_starting: int
    seconds: float
    start_s_max: float
    rss_bytes: int
    complaints: list[str]
    verdicts: dict[str, Verdict]

    @property
    def faults(self) -> list[str]:
        found = traffic.faults(self.verdicts)
        if self.complaints:
            found.append(f"the broker logged {len(self.complaints)} errors, first: {self.complaints[0]}")
        return found


class Soak:
    """One run: traffic, kills, drain, checks."""

    def __init__(self, broker: BrokerProcess, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._broker = broker
        self._folder = folder
        self._seed = seed
        self._tell = tell
        self._traffic = Traffic(self._connect, broker.log_tail, tell)

    def run(self, kills: int) -> Outcome:
        began = time.monotonic()
        self._broker.start()
        traffic.prepare(lambda method, path, body: rest(self._broker, method, f"/admin/v2/{path}", body))
        self._traffic.start()
        starting, start_s_max = self._kill(kills)
        verdicts = self._traffic.finish()
        rss = self._broker.rss_bytes()
        self._broker.stop()
        complaints = self._broker.log_complaints()
        return Outcome(self._seed, kills, starting, time.monotonic() - began, start_s_max, rss, complaints, verdicts)

    def _kill(self, kills: int) -> tuple[int, float]:
        chance = random.Random(self._seed)
        starting, start_s_max = 0, 0.0
        for kill in range(1, kills + 1):
            self._traffic.go_on(lambda: chance.randrange(50, 1200))
            time.sleep(chance.uniform(0.0, 0.2))
            self._broker.kill9()
            if chance.random() < 0.25:
                self._broker.launch()
                time.sleep(chance.uniform(0.05, 0.8))
                self._broker.kill9()
                starting += 1
            self._broker.start()
            start_s_max = max(start_s_max, self._broker.started_in_s)
            if chance.random() < 0.2:
                time.sleep(chance.uniform(0.0, 0.5))
                self._broker.restart()  # a clean stop in full traffic loses nothing either
            self._traffic.start_over()
            self._tell(
                f"kill {kill}/{kills}: {self._traffic.confirmed:,} acknowledged, "
                f"up again in {self._broker.started_in_s:.2f} s"
            )
        return starting, start_s_max

    def _connect(self) -> pulsar.Client:
        log = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self._folder / "clients.log"))
        return pulsar.Client(self._broker.service_url, logger=log, operation_timeout_seconds=30)


def soak(folder: Path, kills: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    broker = BrokerProcess(folder / "data")
    try:
        return Soak(broker, folder, seed, tell).run(kills)
    finally:
        broker.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Crash soak: traffic of every kind under kill -9.")
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"crash soak: {arguments.kills} kills, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    outcome = soak(folder, arguments.kills, seed, functools.partial(print, flush=True))
    for name, verdict in outcome.verdicts.items():
        print(f"  {name:<18} {verdict}")
    print(
        f"  {outcome.kills} kills and {outcome.kills_while_starting} while starting in {outcome.seconds:.0f} s; "
        f"slowest start {outcome.start_s_max:.2f} s; {outcome.rss_bytes >> 20} MB resident at the end"
    )
    if outcome.faults:
        print(f"FAILED, seed {seed}, data and logs kept in {folder}:", *outcome.faults, sep="\n  ")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("All held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
