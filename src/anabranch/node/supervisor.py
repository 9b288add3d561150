"""Runs several broker processes on one machine: `anabranch standalone --brokers N`.

A broker that ends is started again: at once after a long run, with growing pauses after short ones. A broker reports
that it is ready by one byte on a pipe. It ends when its standard input ends, so no broker outlives its supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

READY_FD = "ANABRANCH_READY_FD"
STOP_SECONDS = 30.0
FALSE_STARTS_MAX = 3
"""Short runs in a row of a broker that has never been ready; then all brokers are stopped."""
SETTLED_SECONDS = 10.0
"""A broker that ran for this long is started again without a pause."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause before a broker is started again."""

    first: float = 0.0
    step: float = 0.25
    most: float = 10.0

    def after(self, short_runs: int) -> float:
        """`short_runs`: in a row, with the last one; 0 after a long run."""
        return self.first if short_runs < 1 else min(self.step * 2.0 ** (short_runs - 1), self.most)


class Supervisor:
    def __init__(
        self, commands: Sequence[Sequence[str]], clock: Clock, on_ready: Callable[[], None], pause: Pause | None = None
    ) -> None:
        """`on_ready` is called once, when every broker has been ready."""
        self._commands = [list(command) for command in commands]
        self._clock = clock
        self._on_ready = on_ready
        self._pause = pause or Pause()
        self._unready = set(range(len(commands)))
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._has_failed = False
        self._tasks = TaskOwner("supervisor")

    @property
    def pids(self) -> dict[int, int]:
        """Running brokers, by number."""
        return {number: process.pid for number, process in self._processes.items()}

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        keeping = [self._tasks.spawn(self._keep(number), f"broker {number}") for number in range(len(self._commands))]
        await self._stop.wait()
        log.info("stopping")
        self._is_stopping = True
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait([task for task in keeping if task is not None], timeout=STOP_SECONDS)
        for process in self._processes.values():
            log.error("broker did not stop in time, killed", extra={"pid": process.pid})
            process.kill()
        if late:
            await asyncio.wait(late, timeout=1.0)
        await self._tasks.close()
        return 1 if late or self._has_failed else 0

    async def _keep(self, number: int) -> None:
        short_runs = 0
        while not self._has_to_stop():
            began = self._clock.monotonic()
            code = await self._run_once(number)
            if self._has_to_stop():
                return
            short_runs = 0 if self._clock.monotonic() - began >= SETTLED_SECONDS else short_runs + 1
            if short_runs >= FALSE_STARTS_MAX and number in self._unready:
                log.error("broker does not start, stopping all", extra={"broker": number + 1, "code": code})
                self._has_failed = True
                self._stop.set()
                return
            seconds = self._pause.after(short_runs)
            log.warning("broker ended", extra={"broker": number + 1, "code": code, "again_in_s": round(seconds, 2)})
            await self._clock.sleep(seconds)

    def _has_to_stop(self) -> bool:
        return self._is_stopping

    async def _run_once(self, number: int) -> int:
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._commands[number],
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, READY_FD: str(writing)},
                pass_fds=(writing,),
                start_new_session=True,  # so that Ctrl-C reaches the supervisor only, which stops the brokers in order
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._processes[number] = process
        if self._has_to_stop():
            process.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().add_reader(reading, self._read_ready, number, reading)
        try:
            return await process.wait()
        finally:
            del self._processes[number]
            asyncio.get_running_loop().remove_reader(reading)
            os.close(reading)

    def _read_ready(self, number: int, reading: int) -> None:
        said = os.read(reading, 1)
        asyncio.get_running_loop().remove_reader(reading)
        if said and number in self._unready:
            self._unready.discard(number)
            if not self._unready:
                self._on_ready()


def say_ready() -> None:
    """Reports to the supervisor that this broker serves. Does nothing without a supervisor."""
    number = os.environ.pop(READY_FD, None)
    if number is not None:
        os.write(int(number), b"+")
        os.close(int(number))


def is_supervised() -> bool:
    return READY_FD in os.environ


def broker_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "anabranch", "broker", *arguments]
