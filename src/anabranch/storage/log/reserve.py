"""A little room kept back on the device, so that a full one can still write what deleting needs.

Filling the reserve again is also the probe for "is there room now?".
"""

from __future__ import annotations

from anabranch.runtime.disk import Disk


class Reserve:
    def __init__(self, disk: Disk, directory: str, size: int) -> None:
        self._disk = disk
        self._path = f"{directory}/reserve"
        self._size = size

    def fill(self) -> None:
        """Raises OSError when the device is too full for it."""
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
