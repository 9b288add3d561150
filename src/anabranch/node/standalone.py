"""`anabranch standalone` and `anabranch broker`: one node in this process until a signal asks it to stop.

A broker of a cluster that was replaced (it was frozen or cut off for longer than its session) joins again. Under a
supervisor that is the supervisor's work: the process ends with FENCED_EXIT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from anabranch.model.errors import Error
from anabranch.node import restart as restart
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.node.supervisor import Pause
from anabranch.runtime.clock import Clock, SystemClock
from anabranch.runtime.garbage import Garbage
from anabranch.storage.volume import VolumeBusy

log = logging.getLogger(__name__)

FENCED_EXIT = 3


def run_standalone(settings: NodeSettings, on_ready: Callable[[Node], None], *, is_supervised: bool = False) -> int:
    """Serve until SIGTERM or SIGINT (supervised: or the end of standard input); the exit code.

    Errors at the start are raised. A life after the first is not given up for them: it is tried again, later.
    """
    return asyncio.run(_Life(settings, on_ready, is_supervised, SystemClock()).run())


class _Life:
    def __init__(
        self, settings: NodeSettings, on_ready: Callable[[Node], None], is_supervised: bool, clock: Clock
    ) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._is_supervised = is_supervised
        self._clock = clock
        self._short = restart.short_run_count(os.environ)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        self._listen_for_the_end()
        if self._short is not None and await self._paused(Pause().after(self._short)):
            return 0
        try:
            return await self._serve()
        except (Error, OSError) as error:
            if self._short is None or isinstance(error, VolumeBusy):
                raise
            short = restart.counted(self._short, 0.0)
            again_in_s = round(Pause().after(short), 2)
            log.warning("could not join again", extra={"reason": str(error), "again_in_s": again_in_s})
            restart.restart_process(short)

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_supervised:
            loop.add_reader(sys.stdin.fileno(), self._heard_stdin)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    def _heard_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 1):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop.set()

    async def _paused(self, seconds: float) -> bool:
        """Was the wait ended by a signal?"""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _serve(self) -> int:
        loop = asyncio.get_running_loop()
        garbage = Garbage()
        async with Node(self._settings, self._clock, on_batches=garbage.made) as node:
            garbage.begin()
            began = self._clock.monotonic()
            self._on_ready(node)
            waiting = [loop.create_task(self._stop.wait()), loop.create_task(node.fenced.wait())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if node.fenced.is_set() and not self._stop.is_set():
                self._replaced(self._clock.monotonic() - began)
            log.info("stopping")
        return 0

    def _replaced(self, lived_s: float) -> NoReturn:
        """Nothing is closed: clients go where they are served when their connections end, which is at once."""
        if self._settings.cluster.enabled and not self._is_supervised:
            short = restart.counted(self._short, lived_s)
            again_in_s = round(Pause().after(short), 2)
            log.warning("another broker has taken over; joining again", extra={"again_in_s": again_in_s})
            restart.restart_process(short)
        log.error("another process has taken over this broker's log; stopping")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(FENCED_EXIT)
