"""A forked child closes what its parent guards, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.metadata.sqlite.change_notifier import ChangeNotifier
from anabranch.metadata.sqlite.file_lock import WriterLock
from anabranch.runtime.clock import SystemClock


def open_lock(folder: Path) -> WriterLock:
    return WriterLock(folder / "lock", SystemClock(), 1000)


def open_notifier(folder: Path) -> ChangeNotifier:
    return ChangeNotifier(folder / "notify", folder)


@pytest.mark.parametrize("opened", [open_lock, open_notifier])
def test_closed_object_leaves_reused_descriptor_open_in_child(
    opened: Callable[[Path], WriterLock | ChangeNotifier], tmp_path: Path
) -> None:
    """Otherwise a child that is started between two tests, or by an application, loses one of its pipes."""
    guarded = opened(tmp_path)  # referenced until the end, so that the guard still knows it
    number = guarded._fd
    guarded.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    try:
        assert other == number, "the number is taken again"
        child = os.fork()
        if child == 0:
            try:
                os.fstat(other)
            except OSError:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "the child closed another file's descriptor"
    finally:
        os.close(other)
    guarded.close()
