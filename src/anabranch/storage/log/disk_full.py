"""A full device: appends are refused, the reserve is given up, and now and then somebody looks whether there is room.

Filling the reserve again is how. Knows the gate and when to try; what has to be written before appends may come in
again is the owner's. It lives on the event loop; the reserve is touched on a worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Clock, Timer
from anabranch.storage.interface import StorageError
from anabranch.storage.log.append_gate import Gate, is_full, translated
from anabranch.storage.log.reserve import Reserve

log = logging.getLogger(__name__)


class Shortage:
    worker: Worker
    """Given by the owner when it opens; the one that writes behind: a probe has its turn among those writes."""

    def __init__(
        self,
        gate: Gate,
        reserve: Reserve,
        clock: Clock,
        probe_seconds: float,
        *,
        on_room: Callable[[], bool],
        on_over: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`on_room`: a probe found room; False when something must be written first, and `settled` will tell."""
        self.reserve = reserve
        self._gate = gate
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._on_room = on_room
        self._on_over = on_over
        self._on_failed = on_failed
        self._timer: Timer | None = None
        self._is_probing = False  # from a probe until what it led to is known

    def fill_reserve(self) -> None:
        """When the store opens. On a full device it does so all the same: reading and deleting must work."""
        try:
            self.reserve.fill()
        except OSError as error:
            if not is_full(error):
                raise
            self._gate.fill(translated(error))

    def begin(self, reason: StorageError) -> None:
        """A write found no room (again)."""
        self._is_probing = False
        self._gate.fill(reason)
        log.warning("storage is full", extra={"reason": str(reason.__cause__ or reason)})
        self.worker.submit(self.reserve.release, self._released)
        self.probe_soon()

    def give_up(self) -> None:
        """Something else went wrong, for good."""
        self._is_probing = False

    def settled(self) -> None:
        """Whatever waited to be written was written."""
        if self._gate.is_full and self._is_probing:
            self._over()

    def probe_soon(self) -> None:
        if self._gate.is_full and self._timer is None:
            self._timer = self._clock.call_later(self._probe_seconds, self._probe)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _released(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("the reserve could not be changed", exc_info=error)

    def _probe(self) -> None:
        self._timer = None
        if self._gate.is_full and not self._is_probing:
            self._is_probing = True
            self.worker.submit(self.reserve.fill, self._probed)

    def _probed(self, _: None, error: BaseException | None) -> None:
        if error is None:
            if self._on_room():
                self._over()
            return
        self._is_probing = False
        if is_full(error):
            self.probe_soon()
        else:
            self._on_failed(error)

    def _over(self) -> None:
        self._is_probing = False
        log.info("storage has room again")
        self._on_over()
