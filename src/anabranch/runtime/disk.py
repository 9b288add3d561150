"""Port for the disk: files written at explicit offsets and synced on request.

`RealDisk` is the operating system's. A simulated disk may lose unsynced data, tear writes or run full. All calls block:
they are made from worker threads (see `blocking`), never from the event loop. Failures are plain `OSError`s, which the
storage layer translates.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
IOVECS_MAX = 1024
_DSYNC: int | None = getattr(os, "RWF_DSYNC", None)  # Linux
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux
WORD_FILE_BYTES = 4096


class File(Protocol):
    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; shorter only at the end of the file."""

    def read_resident(self, into: memoryview, offset: int) -> int:
        """Read what is in the page cache from `offset` on, without waiting for the device; 0 if that is not known.

        May be called on the event loop.
        """

    def pwritev(self, pieces: Sequence[Buffer], offset: int, *, synced: bool = False) -> int:
        """Write all pieces consecutively; returns the number of bytes. After an error a prefix may have been written.

        With `synced` these bytes are durable when it returns (earlier writes may not be). It is one system call if
        possible, because a thread that makes two calls waits twice for its turn.
        """

    def fdatasync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve space for the first `size` bytes; new ones read as zero."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Word(Protocol):
    """One unsigned 64-bit number that all processes see at once."""

    def get(self) -> int: ...

    def set(self, value: int) -> None:
        """Durable when it returns."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Read and write; FileNotFoundError unless `create`."""

    def publish(self, path: str, content: bytes) -> bool:
        """Create a whole file atomically and durably; False if it exists already."""

    def exists(self, path: str) -> bool: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> bool:
        """False if it did not exist."""

    def list(self, path: str) -> list[str]:
        """Sorted names in a directory; empty if it does not exist."""

    def make_dir(self, path: str) -> bool:
        """Creates parents too; False if it existed. Durable after `fsync_dir` of the parent."""

    def remove_dir(self, path: str) -> bool:
        """Removes only an empty directory; False if it is missing or not empty."""

    def fsync_dir(self, path: str) -> None: ...

    def sync_all(self, path: str) -> None:
        """Make everything written to the file system of `path` durable: one call for very many files."""

    def lock(self, path: str) -> Lock | None:
        """Held until released or until the process ends; None if another process holds it."""

    def map_word(self, path: str) -> Word:
        """The number at the start of a small shared file; 0 if the file is new."""

    def unique_id(self) -> str: ...


class RealFile:
    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (more := os.pread(self._fd, size - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def read_resident(self, into: memoryview, offset: int) -> int:
        if _NOWAIT is None:
            return 0
        try:
            return os.preadv(self._fd, [into], offset, _NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return 0
            raise

    def pwritev(self, pieces: Sequence[Buffer], offset: int, *, synced: bool = False) -> int:
        start, count = 0, len(pieces)
        place = offset
        if synced and _DSYNC is not None and count <= IOVECS_MAX:
            place += os.pwritev(self._fd, pieces, place, _DSYNC)
            if place - offset == sum(map(len, pieces)):
                return place - offset
            place = offset  # a short write; the next attempt reports the reason
        while start < count:
            chunk = pieces[start : start + IOVECS_MAX]
            want = sum(map(len, chunk))
            wrote = os.pwritev(self._fd, chunk, place)
            place += wrote
            if wrote != want:
                place += self._rest(b"".join(chunk)[wrote:], place)
            start += IOVECS_MAX
        if synced:
            os.fdatasync(self._fd)
        return place - offset

    def _rest(self, data: bytes, place: int) -> int:
        """Continue a short write until everything is written or the system reports an error."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], place + done)
        return done

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class RealWord:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, WORD_FILE_BYTES)
        self._view = memoryview(self._map).cast("Q")

    def get(self) -> int:
        return self._view[0]

    def set(self, value: int) -> None:
        self._view[0] = value
        self._map.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        self._view.release()
        self._map.close()
        os.close(self._fd)


class RealLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class RealDisk:
    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, 0o644))

    def publish(self, path: str, content: bytes) -> bool:
        draft = f"{path}.{self.unique_id()}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, content)
            os.fsync(fd)
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            os.close(fd)
            os.unlink(draft)
        self.fsync_dir(os.path.dirname(path))
        return True

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> bool:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            self.make_dir(os.path.dirname(path))
            return self.make_dir(path)
        return True

    def remove_dir(self, path: str) -> bool:
        try:
            os.rmdir(path)
        except OSError:  # missing, or not empty: both mean "not removed"
            return False
        return True

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync_filesystem(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealLock(fd)

    def map_word(self, path: str) -> Word:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(fd).st_size < WORD_FILE_BYTES:
            os.posix_fallocate(fd, 0, WORD_FILE_BYTES)
            os.fsync(fd)
        return RealWord(fd)

    def unique_id(self) -> str:
        return os.urandom(8).hex()


def _sync_filesystem(fd: int) -> None:
    """`syncfs`, which Python does not provide; imported late because it is rarely needed."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
