"""Real processes: killed, stopped at every step of owner and successor, refused as the second one on a directory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from anabranch.runtime.blocking import ThreadBlocking
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.disk import RealDisk
from anabranch.storage.ledger_store import EmbeddedLedgerStore
from tests.support.processes.storage_child import EXIT_FENCED, LEDGERS, payload_of, publish_time_of, small_settings

ROOT = Path(__file__).parents[3]
LEDGER_IDS = range(1, LEDGERS + 1)
Contents = dict[int, list[bytes]]


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.storage_child", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def wait_stopped(process: subprocess.Popen[str]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"ended instead of stopping: {status}"


def lines_until(process: subprocess.Popen[str], acked: int) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while sum(line.startswith("acked") for line in lines) < acked:
        lines.append(process.stdout.readline())
        assert lines[-1], "the child ended early"
    return lines


def acked_in(lines: list[str]) -> set[tuple[int, int]]:
    return {(int(ledger), int(entry)) for word, ledger, entry in map(str.split, lines_of("acked", lines)) if word}


def lines_of(word: str, lines: list[str]) -> list[str]:
    return [line for line in lines if line.split() and line.split()[0] == word and line.endswith("\n")]


@asynccontextmanager
async def store_of(directory: Path, broker: str) -> AsyncIterator[EmbeddedLedgerStore]:
    blocking = ThreadBlocking(2)
    settings = small_settings(str(directory), broker)
    async with EmbeddedLedgerStore(settings, RealDisk(), blocking, SystemClock(), publish_time_of) as store:
        yield store
    await blocking.close()


async def contents(store: EmbeddedLedgerStore, lengths: dict[int, int] | None = None) -> Contents:
    """All entries of the child's ledgers, up to their sealed lengths."""
    found: Contents = {}
    for ledger_id in LEDGER_IDS:
        end = (await store.summarize(ledger_id)).entries if lengths is None else lengths[ledger_id]
        payloads: list[bytes] = []
        while len(payloads) < end:
            payloads += [
                bytes(entry.payload) for entry in await store.read(ledger_id, len(payloads), end, 500, 1 << 20)
            ]
        found[ledger_id] = payloads
    return found


def check(found: Contents, acked: set[tuple[int, int]]) -> None:
    for ledger_id, payloads in found.items():
        assert payloads == [payload_of(ledger_id, entry) for entry in range(len(payloads))]
    missing = {(ledger, entry) for ledger, entry in acked if entry >= len(found[ledger])}
    assert not missing


async def test_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    with child("append", str(tmp_path), "a") as process:
        lines = lines_until(process, 3000)
        process.kill()
        lines += process.stdout.readlines() if process.stdout else []
        process.wait(10)
    async with store_of(tmp_path, "a") as store:
        check(await contents(store), acked_in(lines))


OWNER_STEPS = [
    ("group-begun", 5),
    ("shares-written", 5),
    ("group-synced", 5),
    ("group-confirmed", 5),
    ("before-write-behind", 2),
    ("written-behind", 2),
    ("checkpoint-synced", 2),
]


@pytest.mark.parametrize(("step", "nth"), OWNER_STEPS)
async def test_owner_stopped_at_any_step_confirms_nothing_after_take_over(tmp_path: Path, step: str, nth: int) -> None:
    with child("append", str(tmp_path), "a", step, str(nth)) as owner:
        wait_stopped(owner)
        async with store_of(tmp_path, "b") as successor:
            await successor.take_over("a")
            sealed = await contents(successor)
            owner.send_signal(signal.SIGCONT)
            output, _ = owner.communicate(timeout=20)
            lines = output.splitlines(keepends=True)
            assert owner.returncode == EXIT_FENCED
            assert lines_of("fenced", lines)
            check(sealed, acked_in(lines))
            assert acked_in(lines)
            lengths = {ledger: len(payloads) for ledger, payloads in sealed.items()}
            assert await contents(successor, lengths) == sealed
    async with store_of(tmp_path, "a") as again:
        assert again.stats().state == "open"
        assert await contents(again, lengths) == sealed


SUCCESSOR_STEPS = ["before-fence", "fence-written", "log-replayed", "ledgers-synced", "log-removed"]


@pytest.mark.parametrize("step", SUCCESSOR_STEPS)
async def test_successor_stopped_at_any_step_does_no_harm(tmp_path: Path, step: str) -> None:
    with child("append", str(tmp_path), "a") as owner:
        lines = lines_until(owner, 500)
        owner.send_signal(signal.SIGSTOP)
        with child("take-over", str(tmp_path), "b", "a", step) as first:
            wait_stopped(first)
            async with store_of(tmp_path, "c") as second:
                await second.take_over("a")
                sealed = await contents(second)
                first.send_signal(signal.SIGCONT)
                assert first.wait(20) == 0
                owner.send_signal(signal.SIGCONT)
                output, _ = owner.communicate(timeout=20)
                lines += output.splitlines(keepends=True)
                check(sealed, acked_in(lines))
                lengths = {ledger: len(payloads) for ledger, payloads in sealed.items()}
                assert await contents(second, lengths) == sealed
        assert owner.returncode == EXIT_FENCED


async def test_a_file_size_limit_is_a_full_device_until_it_is_raised(tmp_path: Path) -> None:
    with child("fill", str(tmp_path), "a", "150000") as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines_of("full", lines):
            lines.append(process.stdout.readline())
            assert lines[-1], "the child ended early"
        assert lines[-1] == "full storage-full\n"
        infinite = resource.RLIM_INFINITY
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (infinite, infinite))
        output, _ = process.communicate(timeout=20)
        lines += output.splitlines(keepends=True)
        assert process.returncode == 0
    acked = acked_in(lines)
    last = max(ledger for ledger, _ in acked)
    assert last > 1
    assert {entry for ledger, entry in acked if ledger == last} == set(range(20))
    async with store_of(tmp_path, "a") as store:
        for ledger, entry in acked:
            (found,) = await store.read(ledger, entry, entry + 1, 1, 1)
            assert bytes(found.payload) == payload_of(ledger, entry)


async def test_second_process_is_refused_with_one_line(tmp_path: Path) -> None:
    with child("append", str(tmp_path), "a") as owner:
        lines_until(owner, 1)
        code = "import sys; from tests.support.processes.storage_child import main; sys.exit(main())"
        second = subprocess.run(
            [sys.executable, "-c", code, "append", str(tmp_path), "a"],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert second.returncode != 0
    assert "VolumeBusy: another process is running as broker 'a'" in second.stderr.splitlines()[-1]
