"""The data directory as a volume with an id, and each broker's directory on it.

DATA/volume.json                      {"format": 1, "volume_id": …}
DATA/ledgers/<xx>/<id>.ledger|.index  shared by all brokers of the volume
DATA/brokers/<broker>/lock            held while that broker's process lives
DATA/brokers/<broker>/fence           see `log/fence`
DATA/brokers/<broker>/log/<generation>/NNNNNNNN.log
"""

from __future__ import annotations

import json

from anabranch.runtime.disk import Disk, Lock
from anabranch.storage.interface import StorageError
from anabranch.storage.ledger.record_format import FORMAT, NewerFormat


class VolumeBusy(StorageError):
    """Another live process uses this broker's directory."""

    code = "volume-busy"


class BadVolume(StorageError):
    code = "bad-volume"


def open_volume(disk: Disk, root: str) -> str:
    """The volume's id. An empty directory becomes a new volume."""
    disk.make_dir(root)
    if not disk.exists(f"{root}/volume.json"):
        for number in range(256):
            disk.make_dir(f"{root}/ledgers/{number:02x}")
        disk.fsync_dir(f"{root}/ledgers")
    path = f"{root}/volume.json"
    if not disk.exists(path):
        disk.publish(path, json.dumps({"format": FORMAT, "volume_id": disk.unique_id()}).encode())
    file = disk.open(path)
    try:
        found = json.loads(file.pread(4096, 0))
        format_, volume_id = found["format"], found["volume_id"]
    except (ValueError, TypeError, KeyError) as error:
        raise BadVolume(f"{path} is not a volume description: {error}") from error
    finally:
        file.close()
    if not isinstance(format_, int) or format_ > FORMAT:
        raise NewerFormat(path, format_)
    return str(volume_id)


def broker_dir(root: str, broker_id: str) -> str:
    return f"{root}/brokers/{broker_id}"


def lock_broker(disk: Disk, root: str, broker_id: str) -> Lock:
    directory = broker_dir(root, broker_id)
    if disk.make_dir(directory):
        disk.fsync_dir(f"{root}/brokers")
        disk.fsync_dir(root)
    lock = disk.lock(f"{directory}/lock")
    if lock is None:
        raise VolumeBusy(f"another process is running as broker {broker_id!r} on {root}")
    return lock
