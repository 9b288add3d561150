"""Decides which process may confirm: one number per broker directory, shared by all processes through a mapped page.

Each owner and each successor claims a new generation by creating a directory, which only one process can do, and then
raises the number durably. An owner may confirm only while the number equals its generation.

An owner reads the number *after* its bytes are on the disk. A successor reads the log *after* it has raised the number.
So a successor reads everything that was ever confirmed.
"""

from __future__ import annotations

from anabranch.runtime.disk import Disk, Word
from anabranch.storage.interface import Fenced


class Fence:
    def __init__(self, word: Word, generation: int) -> None:
        self._word = word
        self.generation = generation
        self._get = word.get

    def is_held(self) -> bool:
        return self._get() == self.generation

    def reason(self, error: BaseException) -> BaseException:
        """The cause of a failure. A fenced owner finds its log directory deleted, which is no failure of the disk."""
        if self.is_held():
            return error
        fenced = Fenced("another process has taken over this broker's log")
        fenced.__cause__ = error
        return fenced

    def close(self) -> None:
        self._word.close()


def generations(disk: Disk, broker_dir: str) -> list[int]:
    """Generations that have a log directory, oldest first."""
    return sorted(int(name) for name in disk.list(f"{broker_dir}/log") if name.isdigit())


def log_dir(broker_dir: str, generation: int) -> str:
    return f"{broker_dir}/log/{generation:08d}"


def claim(disk: Disk, broker_dir: str) -> Fence:
    """Fence all earlier generations; durable when this returns."""
    word = disk.map_word(f"{broker_dir}/fence")
    generation = max([word.get(), *generations(disk, broker_dir)]) + 1
    while not disk.make_dir(log_dir(broker_dir, generation)):
        generation += 1
    disk.fsync_dir(f"{broker_dir}/log")
    disk.fsync_dir(broker_dir)
    if word.get() < generation:
        word.set(generation)
    return Fence(word, generation)
