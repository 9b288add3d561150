"""A full device: appends are refused, the reserve is released, and a probe looks periodically whether there is room.

The reserve is a small file that keeps space back, so that a full device can still write what deletion needs. A probe
fills the reserve again: if that works, there is room. Runs on the event loop; the reserve is written on a worker
thread.

    open -> full: a write found no room          full -> probing: every `probe_seconds`
    probing -> full: still no room               probing -> open: room, and all pending writes are done
"""

from __future__ import annotations

from typing import Protocol

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.disk import Disk
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import StorageError
from anabranch.storage.log.append_gate import AppendGate, is_full, translated

log = get_logger(__name__)


class DiskReserve:
    def __init__(self, disk: Disk, directory: str, size: int) -> None:
        self._disk = disk
        self._path = f"{directory}/reserve"
        self._size = size

    def fill(self) -> None:
        """Raises OSError when the device has no room for it."""
        file = self._disk.open(self._path, create=True)
        try:
            if file.size() < self._size:
                file.pwritev([bytes(self._size)], 0)
                file.fdatasync()
        except OSError:
            file.truncate(0)
            raise
        finally:
            file.close()

    def release(self) -> None:
        self._disk.unlink(self._path)


def fill_reserve(reserve: DiskReserve, gate: AppendGate) -> None:
    """Fill the reserve when the store opens. A full device shuts the gate only: reading and deleting must work."""
    try:
        reserve.fill()
    except OSError as error:
        if not is_full(error):
            raise
        gate.fill(translated(error))


class DiskFullListener(Protocol):
    """Called on the event loop."""

    def write_pending(self) -> bool:
        """A probe found room. Starts the writes that failed for lack of it; True if there are none."""

    def on_room(self) -> None:
        """Appends may be accepted again."""

    def on_failed(self, error: BaseException) -> None:
        """A probe failed for another reason than a full device."""


class DiskFullHandler:
    def __init__(
        self,
        gate: AppendGate,
        reserve: DiskReserve,
        clock: Clock,
        probe_seconds: float,
        *,
        worker: Worker,
        listener: DiskFullListener,
    ) -> None:
        """`worker` is the one of the write-behind, so that probes and writes to ledger files take turns."""
        self._gate = gate
        self._reserve = reserve
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._worker = worker
        self._listener = listener
        self._timer: Timer | None = None
        self._is_probing = False  # until the writes that the probe started have finished or failed

    def begin(self, reason: StorageError) -> None:
        """A write found no room, perhaps not for the first time."""
        self._is_probing = False
        self._gate.fill(reason)
        extra = {"reason": str(reason.__cause__ or reason)}
        log.warning("storage is full: appends are refused until there is room", extra=extra)
        self._worker.submit(self._reserve.release, self._released)
        self.probe_soon()

    def give_up(self) -> None:
        """Storage has stopped for another reason; a probe under way no longer reopens the gate."""
        self._is_probing = False

    def on_write_finished(self) -> None:
        """The pending writes have been done."""
        if self._gate.is_full and self._is_probing:
            self._reopen()

    def probe_soon(self) -> None:
        if self._gate.is_full and self._timer is None:
            self._timer = self._clock.call_later(self._probe_seconds, self._probe)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _released(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("disk reserve not released", exc_info=error)

    def _probe(self) -> None:
        self._timer = None
        if self._gate.is_full and not self._is_probing:
            self._is_probing = True
            self._worker.submit(self._reserve.fill, self._probed)

    def _probed(self, _: None, error: BaseException | None) -> None:
        if error is None:
            if self._listener.write_pending():
                self._reopen()
            return
        self._is_probing = False
        if is_full(error):
            self.probe_soon()
        else:
            self._listener.on_failed(error)

    def _reopen(self) -> None:
        self._is_probing = False
        log.info("storage has room again: appends are accepted")
        self._listener.on_room()
