"""`make soak`: three brokers on one data directory.

They are killed with -9, frozen, stopped, restarted and drained, one after the other and two at a time, under traffic of
every kind (see `traffic`).

At the end, besides the checks of `traffic`: no send was refused; nothing acknowledged before the documented window is
redelivered after all three are killed at once; no broker logged an error. A broker that was frozen past its session may
only log that it was replaced. The seed repeats the plan, not the timing.
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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pulsar

from tests import services
from tests.soak import traffic
from tests.soak.traffic import Traffic
from tests.support.in_memory.metadata_stores import fresh_url
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses, RestRefused, rest
from tests.support.traffic.delivery_audit import Verdict

SESSION_MS = 3_000
OF_REPLACED = ("this broker was replaced", "storage stopped", "taken over this broker's log", "did not close cleanly")
"""Log lines allowed for a broker that was frozen for too long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    seconds: float
    deeds: Counter[str]
    refused: int
    again: list[str]
    complaints: list[str]
    verdicts: dict[str, Verdict]

    @property
    def faults(self) -> list[str]:
        found = traffic.faults(self.verdicts) + self.again
        if self.refused:
            found.append(f"{self.refused} sends were refused")
        if self.complaints:
            found.append(f"the brokers logged {len(self.complaints)} errors, first: {self.complaints[0]}")
        return found


class ClusterSoak:
    def __init__(self, cluster: ClusterProcesses, seed: int, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._seed = seed
        self._chance = random.Random(seed)
        self._tell = tell
        self._traffic = Traffic(self._connect, cluster.log_tail, tell)
        self._deeds: Counter[str] = Counter()
        self._frozen = False

    def run(self, rounds: int) -> Outcome:
        began = time.monotonic()
        self._cluster.start()
        traffic.prepare(lambda method, path, body: rest(self._cluster.alive[0], method, f"/admin/v2/{path}", body))
        self._traffic.start()
        for number in range(1, rounds + 1):
            self._traffic.go_on(lambda: self._chance.randrange(50, 600))
            what = self._strike()
            self._deeds[what.partition(" ")[0]] += 1
            self._tell(f"{number}/{rounds} {what}: {self._traffic.confirmed:,} acknowledged")
            if self._chance.random() < 0.5:
                self._traffic.start_over()
            if self._chance.random() < 0.7:
                self._cluster.revive()
            else:
                self._cluster.launch_missing()  # the next fault may come while they start
        self._cluster.revive()
        verdicts = self._traffic.finish()
        refused = self._traffic.refused
        time.sleep(traffic.ACKS_S)  # the window in which a crash may lose acknowledgements
        for broker in self._cluster.alive:
            broker.kill9()
        self._cluster.revive()
        again = self._traffic.comes_again()
        for broker in self._cluster.alive:
            broker.terminate()
        for broker in self._cluster.alive:
            broker.wait_exit()
        complaints = [line for line in self._cluster.log_complaints() if not self._is_excused(line)]
        return Outcome(self._seed, time.monotonic() - began, self._deeds, refused, again, complaints, verdicts)

    def _is_excused(self, line: str) -> bool:
        """Frozen by the soak, or by an overloaded machine; then it logs that it joins again."""
        name = line.partition(":")[0]
        was_away = self._frozen or "restarting to join again" in self._cluster.brokers[name].log_path.read_text(
            errors="replace"
        )
        return was_away and any(said in line for said in OF_REPLACED)

    def _strike(self) -> str:
        chance = self._chance
        victim = self._victim()
        deed = chance.choice(["kill", "kill", "kill-two", "stop", "freeze-short", "freeze-long", "unload"])
        match deed:
            case "kill":
                victim.kill9()
            case "kill-two":
                victim.kill9()
                time.sleep(chance.uniform(0.0, 0.5))
                chance.choice(self._cluster.alive).kill9()
            case "stop":
                victim.wait_ready()  # it may just be joining again; a signal before it listens for one is a kill
                victim.stop(within_s=30)
            case "freeze-short":
                victim.freeze()
                time.sleep(chance.uniform(0.1, 0.5) * SESSION_MS / 1000)
                victim.thaw()
            case "freeze-long":
                self._frozen = True
                victim.freeze()
                time.sleep(chance.uniform(1.1, 1.8) * SESSION_MS / 1000)
                victim.thaw()
            case _:
                self._unload()
        return deed

    def _victim(self) -> BrokerProcess:
        """Chooses a broker, preferably one that serves topics."""
        topics = [traffic.PLAIN, traffic.ONCE, traffic.BATCH, f"{traffic.KEYED}-partition-0"]
        if self._chance.random() < 0.8:
            owner = self._cluster.owner(self._chance.choice(topics))
            if owner.is_alive:
                return owner
        return self._chance.choice(self._cluster.alive)

    def _unload(self) -> None:
        path = self._chance.choice([traffic.PLAIN, traffic.ONCE, traffic.BATCH]).replace("://", "/")
        try:
            rest(self._chance.choice(self._cluster.alive), "PUT", f"/admin/v2/{path}/unload")
        except (RestRefused, OSError) as error:
            self._tell(f"unload: {error}")  # no broker serves it at the moment

    def _connect(self) -> pulsar.Client:
        log = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self._cluster.folder / "clients.log"))
        return pulsar.Client(self._cluster.service_url, logger=log, operation_timeout_seconds=30)


def soak(folder: Path, kind: str, rounds: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    """`kind` of the metadata store: sqlite, zk, etcd, oxia."""
    url = None if kind == "sqlite" else fresh_url(kind, folder)
    cluster = ClusterProcesses(folder, 3, metadata_url=url, session_ms=SESSION_MS)
    try:
        return ClusterSoak(cluster, seed, tell).run(rounds)
    finally:
        cluster.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Three brokers, traffic of every kind, kill -9, freezes, restarts.")
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--metadata", choices=["sqlite", *services.KINDS], default="sqlite")
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"cluster soak on {arguments.metadata}: {arguments.rounds} rounds, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    outcome = soak(folder, arguments.metadata, arguments.rounds, seed, functools.partial(print, flush=True))
    for name, verdict in outcome.verdicts.items():
        print(f"  {name:<18} {verdict}")
    print(f"  {dict(outcome.deeds)} in {outcome.seconds:.0f} s; {outcome.refused} sends refused")
    if outcome.faults:
        print(f"FAILED, seed {seed}, data and logs kept in {folder}:", *outcome.faults, sep="\n  ")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("All held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
