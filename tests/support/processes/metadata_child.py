"""A process that works on a SQLite metadata store, for tests that kill, stop and resume it.

    python -m tests.support.processes.metadata_child FOLDER NAME '{"keys": […], "seed": 1, …}'

It prints `ready`, then for every operation `b` before the request and `e` with the outcome after it. An operation
without `e` has an unknown outcome. With "live" it also holds an ephemeral key below that path and prints `session
EVENT`. It ends with exit code 0 on SIGTERM. `Child` is the other side, for the test.
"""

from __future__ import annotations

import asyncio
import base64
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.metadata.interface import ANY, Expected, Rule
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.runtime.clock import SystemClock
from tests.support.faults.linearizability import Answer, Found, Kind, Operation, Wrote
from tests.support.faults.store_workload import Client, Record
from tests.support.processes.sigstop import stop_outside


class SpokenRecord(Record):
    def began(self, operation: Operation) -> None:
        say("b", encode(operation))

    def ended(self, operation: Operation | None) -> None:
        say("e", encode(operation) if operation is not None else "null")


def say(word: str, text: str = "") -> None:
    print(word, text, flush=True)


def encode(operation: Operation) -> str:
    answer = operation.answer
    outcome: Any = str(answer)
    if isinstance(answer, Found):
        outcome = [base64.b64encode(answer.value).decode(), answer.version]
    elif isinstance(answer, Wrote):
        outcome = [answer.version]
    expected = operation.expected.value if isinstance(operation.expected, Rule) else operation.expected
    value = base64.b64encode(operation.value).decode()
    span = [operation.called, operation.returned]
    return json.dumps([operation.client, operation.key, operation.kind, *span, outcome, value, expected])


def decode(text: str) -> Operation | None:
    outcome = json.loads(text)
    if outcome is None:
        return None
    client, key, kind, called, returned, answer, value, expected = outcome
    if isinstance(answer, str):
        answer = Answer(answer)
    else:
        answer = Wrote(answer[0]) if len(answer) == 1 else Found(base64.b64decode(answer[0]), answer[1])
    rule: Expected = Rule(expected) if isinstance(expected, str) else expected
    return Operation(client, key, Kind(kind), called, returned, answer, base64.b64decode(value), rule)


async def main(folder: str, name: str, options: Mapping[str, Any]) -> None:
    if "file_bytes_max" in options:  # its disk is full: Python ignores the signal, so writes fail with an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_bytes_max"], resource.RLIM_INFINITY))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with SqliteStore(Path(folder), SystemClock(), options["lock_wait_ms"]) as store:
        if "live" in options:
            session = await store.open_session(options["ttl_ms"])
            session.listen(lambda event: say("session", event))
            await store.put(options["live"], name.encode(), expected=ANY, session=session)
        say("ready")
        record = SpokenRecord()
        await Client(name, store, options["keys"], record, options["deadline_s"], options["seed"]).work(
            stop, options["pace_s"]
        )
        for violation in record.violations:
            say("violation", violation)


class Child:
    """The test's side of one such process: its output until its end."""

    def __init__(self, folder: Path, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._folder = folder
        self._log = folder.with_name(f"{folder.name}-{name}.log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.processes.metadata_child",
                    str(folder),
                    name,
                    json.dumps(options),
                ],
                stdout=log,
            )

    def said(self) -> list[tuple[str, str]]:
        """Complete lines only: a kill may have truncated the last one."""
        whole = self._log.read_bytes().rpartition(b"\n")[0].decode()
        return [(word, rest) for word, _, rest in (line.partition(" ") for line in whole.splitlines())]

    async def wait_said(self, word: str, rest: str = "", within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while (word, rest) not in self.said():
            assert time.monotonic() < deadline, f"{self.name} did not say {word} {rest} in {within_s} s"
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}"
            await asyncio.sleep(0.01)

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """At any moment, also in the middle of a commit."""
        self.process.send_signal(signal.SIGSTOP)

    def pause_outside(self) -> None:
        """Between commits: the others can go on."""
        stop_outside(self.process.pid, self._folder)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def end(self, within_s: float = 30.0) -> None:
        """A clean stop, unless it is dead already."""
        if self.process.poll() is None:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait, within_s)
            assert self.process.returncode == 0, f"{self.name} ended with {self.process.returncode}"

    def operations(self) -> list[Operation]:
        begun: Operation | None = None
        done: list[Operation] = []
        for word, rest in self.said():
            assert word != "violation", rest
            if word == "b":
                begun = decode(rest)
            elif word == "e":
                begun = None
                ended = decode(rest)
                if ended is not None:
                    done.append(ended)
        if begun is not None and begun.kind is not Kind.GET:
            done.append(begun)
        return done


def merged(children: Sequence[Child]) -> list[Operation]:
    """All operations of these processes, with unique client names."""
    return [replace(operation, client=child.name) for child in children for operation in child.operations()]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
