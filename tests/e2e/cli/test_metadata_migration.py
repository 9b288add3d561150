"""`anabranch admin metadata-migration` on one broker, as an operator uses it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.cli.admin import metadata_migration
from anabranch.cli.main import main
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import rest


def test_one_broker_moves_back_and_forth(
    private_broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--admin-url", private_broker.http_url]

    def run(*words: str, code: int = 0) -> str:
        assert main(["admin", *words, *at]) == code, capsys.readouterr()
        out, err = capsys.readouterr()
        return out + err

    assert "no migration" in run("metadata-migration", "status")
    assert "no migration" in run("metadata-migration", "abort", code=1)
    assert "name the target" in run("metadata-migration", "start", "--target", "", code=1)
    assert "no metadata store for" in run("metadata-migration", "start", "--target", "foo:bar", code=1)
    run("topics", "create", "kept")
    other = f"sqlite:///{tmp_path}/other"
    shown = run("metadata-migration", "start", "--target", other, "--wait")
    assert "COMPLETED" in shown
    assert f'url = "{other}"' in shown
    assert "no difference" in run("metadata-migration", "verify")
    run("topics", "create", "later")
    check_tools(f"sqlite:///{private_broker.data}/metadata", other, tmp_path, capsys)
    source = json.loads(run("metadata-migration", "status", "--json"))["sourceUrl"]
    assert "earlier migration" in run("metadata-migration", "start", "--target", source, code=1)
    assert "COMPLETED" in run("metadata-migration", "start", "--target", source, "--wait", "--purge-target")
    assert "later" in run("topics", "list", "public/default")
    private_broker.restart()


def check_tools(old: str, new: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs that open a store themselves: they write into the store in use only, and say which that is."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["metadata", *words])
        out, err = capsys.readouterr()
        return code, out, err

    saved = str(folder / "saved.jsonl")
    code, _, err = run("export", old, "/", "-o", saved)
    assert code == 0 and f"note: the cluster uses another metadata store since a migration: {new}" in err
    assert run("ls", old)[0] == 0, "reading goes on"
    for words in (
        ("put", old, "/lost", "x"),
        ("rm", old, "/", "-r", "--yes"),
        ("rm", old, "/pulsar/migration-coordinator/migration", "--yes"),
        ("import", old, saved, "--merge"),
    ):
        code, _, err = run(*words)
        assert code == 1 and "uses another metadata store" in err and f"write there: {new}" in err, (words, err)
    assert run("put", old, "/kept", "x", "--old-store")[0] == 0
    assert run("put", new, "/new", "x")[0] == 0
    assert run("rm", new, "/new", "--yes")[0] == 0
    code, _, err = run("get", new, "/kept")
    assert code == 1 and "note:" not in err


def during_copy(broker: BrokerProcess, act: Callable[[], None]) -> threading.Thread:
    """Does `act` once the copy is on its way, so that `start` has been answered."""

    def wait() -> None:
        deadline = time.monotonic() + 30
        while True:
            status = rest(broker, "GET", "/admin/v2/metadata/migration/status")
            if (status["phase"], status["subPhase"]) == ("NOT_STARTED", "PRE_COPY") and status["counts"]["records"] > 1:
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_wait_ends_with_the_reason_of_a_failure_and_what_to_do(
    private_broker: BrokerProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Aborted, then killed and started again, then killed for longer than the command waits for an answer."""
    monkeypatch.setattr(metadata_migration, "_SILENT_S", 8.0)
    broker = private_broker

    def start(name: str, code: int, act: Callable[[], None]) -> str:
        thread = during_copy(broker, act)
        url = f"sqlite:///{tmp_path}/{name}"
        words = ["metadata-migration", "start", "--target", url, "--wait", "--rate", "1"]
        assert main(["admin", *words, "--admin-url", broker.http_url]) == code
        thread.join(30)
        assert not thread.is_alive()
        return capsys.readouterr().err

    text = start("one", 1, lambda: rest(broker, "POST", "/admin/v2/metadata/migration/abort"))
    assert "the store in use is unchanged: aborted by an administrator. Start it again at any broker" in text
    assert "--purge-target" in text

    def kill_and_start() -> None:
        broker.kill9()
        broker.start()

    text = start("two", 1, kill_and_start)
    assert "the store in use is unchanged: the coordinator" in text and "has ended" in text
    monkeypatch.setattr(metadata_migration, "_SILENT_S", 1.0)
    text = start("three", 1, broker.kill9)
    assert "the broker that coordinates the migration does not answer" in text
    assert "Look at another broker" in text
    broker.start()
    url = f"sqlite:///{tmp_path}/three"
    again = ["metadata-migration", "start", "--target", url, "--wait", "--rate", "0", "--purge-target", "--json"]
    deadline = time.monotonic() + 30
    while main(["admin", *again, "--admin-url", broker.http_url]) != 0:  # until the lease of the killed one has ended
        assert "a migration is running" in capsys.readouterr().err
        assert time.monotonic() < deadline
        time.sleep(0.2)
    done = json.loads(capsys.readouterr().out)
    assert (done["phase"], done["settings"], done["isBlocked"]) == ("COMPLETED", {"metadata.url": url}, False)


def test_wait_shows_progress_on_a_terminal(private_broker: BrokerProcess, tmp_path: Path) -> None:
    for number in range(20):
        rest(private_broker, "PUT", f"/admin/v2/persistent/public/default/kept-{number}")
    ours, theirs = pty.openpty()
    words = ["start", "--target", f"sqlite:///{tmp_path}/other", "--wait", "--rate", "10"]
    command = [sys.executable, "-m", "anabranch", "admin", "metadata-migration", *words]
    with subprocess.Popen(
        [*command, "--admin-url", private_broker.http_url], stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the terminal of a process that has ended
                break
            if not part:
                break
            seen += part
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
    os.close(ours)
    text = seen.decode()
    assert "copying while writes go on; " in text and " of about " in text
    assert "/s, about " in text and " s left of this step" in text
    assert "Set this for every broker before its next restart" in out.decode()
