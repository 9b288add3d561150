"""A disk, a clock and workers for storage tests: one thread, deterministic, with power cuts at any operation.

`SimDisk` keeps for every file what is synced and what is only written. `after_power_cut` returns the disk that another
process would find: all synced bytes, any selection of pages of the others (or none); unsynced names may be lost.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ParamSpec, TypeVar

from anabranch.runtime.blocking import Worker
from anabranch.runtime.clock import Timer
from anabranch.runtime.disk import Buffer, File, Lock, Word

P = ParamSpec("P")
T = TypeVar("T")
PAGE = 4096


class PowerCut(OSError):
    def __init__(self) -> None:
        super().__init__(errno.EIO, "power cut")


@dataclass
class Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes, offset: int) -> None:
        if len(self.data) < offset:
            self.data += bytes(offset - len(self.data))
        self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        self.synced = bytearray(self.data)

    def survivor(self, random: Random | None) -> Inode:
        """None: everything written is there (the process died, not the machine)."""
        if random is None:
            return Inode(bytearray(self.data), bytearray(self.data))
        kept = bytearray(self.synced)
        if len(self.data) < len(kept):
            kept = kept[: len(self.data)] if random.random() < 0.5 else kept
        for start in range(0, len(self.data), PAGE):
            page = self.data[start : start + PAGE]
            if page != kept[start : start + PAGE] and random.random() < 0.5:
                if len(kept) < start:
                    kept += bytes(start - len(kept))
                kept[start : start + len(page)] = page
        return Inode(kept, bytearray(kept))


class SimDisk:
    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.dirs: set[str] = set()
        self.steps = 0
        self.cut_at: int | None = None  # the operation at which the power fails
        self.bytes_max: int | None = None  # size of the device
        self.syncs: list[str] = []
        self.bytes_read = 0
        self._locks: set[str] = set()
        self._ids = 0

    def step(self) -> bool:
        """Count an operation; True at the one that the power cut hits."""
        self.steps += 1
        if self.cut_at is not None and self.steps > self.cut_at:
            raise PowerCut
        return self.steps == self.cut_at

    def hit(self) -> None:
        if self.step():
            raise PowerCut

    def check_space(self, more: int) -> None:
        if self.bytes_max is not None and sum(len(node.data) for node in self.names.values()) + more > self.bytes_max:
            raise OSError(errno.ENOSPC, "no space left on device")

    def after_power_cut(self, random: Random | None) -> SimDisk:
        self.cut_at = min(
            self.steps, self.cut_at or self.steps
        )  # a process that still runs on this disk can do nothing more
        after = SimDisk()
        after.dirs = set(self.dirs)
        after._ids = self._ids
        names = dict(self.names)
        if random is not None:
            for directory in sorted({path.rpartition("/")[0] for path in {*self.names, *self.synced_names}}):
                if random.random() < 0.5:
                    names = {path: node for path, node in names.items() if path.rpartition("/")[0] != directory}
                    for path, node in self.synced_names.items():
                        if path.rpartition("/")[0] == directory:
                            names[path] = node
        after.names = {path: node.survivor(random) for path, node in names.items()}
        after.synced_names = dict(after.names)
        return after

    # the port -----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        if path not in self.names:
            if not create:
                raise FileNotFoundError(path)
            if path.rpartition("/")[0] not in self.dirs:
                raise FileNotFoundError(path)
            self.hit()
            self.names[path] = Inode()
        return SimFile(path, self, self.names[path])

    def publish(self, path: str, content: bytes) -> bool:
        self.hit()
        if path in self.names:
            return False
        self.names[path] = self.synced_names[path] = Inode(bytearray(content), bytearray(content))
        return True

    def exists(self, path: str) -> bool:
        return path in self.names

    def rename(self, old: str, new: str) -> None:
        if old not in self.names:
            raise FileNotFoundError(old)
        self.hit()
        self.names[new] = self.names.pop(old)

    def unlink(self, path: str) -> bool:
        self.hit()
        return self.names.pop(path, None) is not None

    def list(self, path: str) -> list[str]:
        children = {
            name[len(path) + 1 :].partition("/")[0] for name in {*self.names, *self.dirs} if name.startswith(path + "/")
        }
        return sorted(children)

    def make_dir(self, path: str) -> bool:
        if self.cut_at is not None and self.steps >= self.cut_at:
            raise PowerCut  # not counted as an operation: a new volume makes very many
        is_new = path not in self.dirs
        while path:
            self.dirs.add(path)
            path = path.rpartition("/")[0]
        return is_new

    def remove_dir(self, path: str) -> bool:
        self.hit()
        if path not in self.dirs or self.list(path):
            return False
        self.dirs.discard(path)
        return True

    def fsync_dir(self, path: str) -> None:
        self.hit()
        for name in [name for name in self.synced_names if name.rpartition("/")[0] == path]:
            del self.synced_names[name]
        self.synced_names.update({name: node for name, node in self.names.items() if name.rpartition("/")[0] == path})

    def sync_all(self, path: str) -> None:
        self.hit()
        self.syncs.append("all")
        for node in self.names.values():
            node.sync()
        self.synced_names = dict(self.names)

    def lock(self, path: str) -> Lock | None:
        if path in self._locks:
            return None
        self._locks.add(path)
        return SimLock(self._locks, path)

    def map_word(self, path: str) -> Word:
        node = self.names.setdefault(path, Inode(bytearray(8), bytearray(8)))
        self.synced_names[path] = node
        return SimWord(self, node)

    def unique_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"


class SimFile:
    def __init__(self, path: str, disk: SimDisk, node: Inode) -> None:
        self.path = path
        self._disk = disk
        self._node = node

    def pread(self, size: int, offset: int) -> bytes:
        data = bytes(self._node.data[offset : offset + size])
        self._disk.bytes_read += len(data)
        return data

    def read_resident(self, into: memoryview, offset: int) -> int:
        data = self._node.data[offset : offset + len(into)]
        into[: len(data)] = data
        self._disk.bytes_read += len(data)
        return len(data)

    def pwritev(self, pieces: Sequence[Buffer], offset: int, *, synced: bool = False) -> int:
        data = b"".join(pieces)
        is_cut = self._disk.step()
        more = max(offset + len(data) - len(self._node.data), 0)
        try:
            self._disk.check_space(more)
        except OSError:
            self._node.write(data[: len(data) // 2], offset)
            raise
        if is_cut:
            self._node.write(data[: len(data) // 2], offset)
            raise PowerCut
        self._node.write(data, offset)
        if synced:
            self.fdatasync()
        return len(data)

    def fdatasync(self) -> None:
        self._disk.hit()
        self._disk.syncs.append(self.path)
        self._node.sync()

    def truncate(self, size: int) -> None:
        self._disk.hit()
        del self._node.data[size:]

    def allocate(self, size: int) -> None:
        self._disk.hit()
        self._disk.check_space(max(size - len(self._node.data), 0))
        self._node.data += bytes(max(size - len(self._node.data), 0))

    def size(self) -> int:
        return len(self._node.data)

    def close(self) -> None:
        """Nothing is held."""


class SimWord:
    def __init__(self, disk: SimDisk, node: Inode) -> None:
        self._disk = disk
        self._node = node

    def get(self) -> int:
        return int.from_bytes(self._node.data[:8], "little")

    def set(self, value: int) -> None:
        self._disk.hit()
        self._node.write(value.to_bytes(8, "little"), 0)
        self._node.sync()

    def close(self) -> None:
        """Nothing is held."""


class SimLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


@dataclass(order=True)
class SimTimer:
    at: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class SimClock:
    """Time moves only on request; a call without delay runs in the next turn of the event loop."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._timers: list[SimTimer] = []
        self._count = 0

    def now_ms(self) -> int:
        return int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        if seconds <= 0:
            return asyncio.get_running_loop().call_soon(callback)
        self._count += 1
        timer = SimTimer(self._now + seconds, self._count, callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self._now += seconds
        due = sorted(timer for timer in self._timers if timer.at <= self._now)
        self._timers = [timer for timer in self._timers if timer.at > self._now]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()


class SimWorker:
    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        asyncio.get_running_loop().call_soon(self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result = work()
        except Exception as error:
            asyncio.get_running_loop().call_soon(done, None, error)
        else:
            asyncio.get_running_loop().call_soon(done, result, None)

    async def close(self) -> None:
        await asyncio.sleep(0)


class SimBlocking:
    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        return call(*args, **kwargs)

    def worker(self, name: str) -> Worker:
        return SimWorker()

    async def close(self) -> None:
        await asyncio.sleep(0)
