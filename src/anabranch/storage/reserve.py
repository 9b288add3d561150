"""A little room kept back on the device, so that a full one can still write what deleting needs.

Filling the reserve again is also the probe for "is there room now?".
"""

from __future__ import annotations

from anabranch.runtime.disk import Disk

RESERVE_BYTES = 1 << 20


class Reserve:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/reserve"

    def fill(self) -> None:
        """Raises OSError when the device is too full for it."""
        file = self._disk.open(self._path, create=True)
        try:
            if file.size() < RESERVE_BYTES:
                file.pwritev([bytes(RESERVE_BYTES)], 0)
                file.fdatasync()
        except OSError:
            file.truncate(0)
            raise
        finally:
            file.close()

    def release(self) -> None:
        self._disk.unlink(self._path)
