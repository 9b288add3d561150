"""`anabranch standalone` and `anabranch broker`: runs one node in this process until a signal stops it.

A broker that was frozen or disconnected for longer than its session is replaced by another broker of the cluster; it
restarts itself and joins again. A supervised broker ends with FENCED_EXIT instead, and the supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from anabranch import __version__
from anabranch.model.errors import Error
from anabranch.node import restart
from anabranch.node.native_code import native_code
from anabranch.node.node import Node
from anabranch.node.settings.node import NodeSettings
from anabranch.node.supervisor import Pause
from anabranch.runtime.clock import Clock, SystemClock
from anabranch.runtime.garbage import Garbage
from anabranch.runtime.logs import get_logger
from anabranch.storage.volume import VolumeBusy

log = get_logger(__name__)

FENCED_EXIT = 3


def run_standalone(settings: NodeSettings, on_ready: Callable[[Node], None], *, is_supervised: bool = False) -> int:
    """Serves until SIGTERM or SIGINT (supervised: or the end of standard input); returns the exit code.

    The first start raises its errors. After a restart an error leads to another restart, after a pause.
    """
    return asyncio.run(_Run(settings, on_ready, is_supervised, SystemClock()).run())


class _Run:
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
        self._watch_stop_requests()
        try:
            return await self._run()
        finally:
            # The loop closes its end of the wakeup descriptor before it removes its handlers: a signal in between would
            # be reported with a traceback. The process ends, so it needs no further signal.
            signal.set_wakeup_fd(-1)

    async def _run(self) -> int:
        if self._short is not None and await self._paused(Pause().after(self._short)):
            return 0
        try:
            return await self._serve()
        except (Error, OSError) as error:
            if self._short is None or isinstance(error, VolumeBusy):
                raise
            short = restart.counted(self._short, 0.0)
            again_in_s = round(Pause().after(short), 2)
            log.warning(
                "could not join the cluster again, restarting", extra={"reason": str(error), "again_in_s": again_in_s}
            )
            restart.restart_process(short)

    def _watch_stop_requests(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_supervised:
            loop.add_reader(sys.stdin.fileno(), self._read_stdin)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    def _read_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 1):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop.set()

    async def _paused(self, seconds: float) -> bool:
        """Whether a signal ended the pause."""
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
            log.info("serving", extra={"version": __version__, "c_code": native_code()})
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
        """Closes nothing: the connections end with the process, and clients look their topics up again."""
        if self._settings.cluster.enabled and not self._is_supervised:
            short = restart.counted(self._short, lived_s)
            again_in_s = round(Pause().after(short), 2)
            log.warning("another broker has taken over; restarting to join again", extra={"again_in_s": again_in_s})
            restart.restart_process(short)
        log.error("another process has taken over this broker's log; stopping")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(FENCED_EXIT)
