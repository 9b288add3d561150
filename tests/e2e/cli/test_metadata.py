"""`anabranch metadata` as people use it: every verb, on every store that another process can reach."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli.main import main
from tests import services
from tests.e2e.conftest import StartBroker
from tests.support.faults.fault_proxy_thread import ProxyThread
from tests.support.in_memory.metadata_stores import fresh_url, params
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import EARLIEST, Rest, payloads, send_all
from tests.support.traffic.stock_client import new_client

REACHABLE = ("sqlite", "zk", "etcd", "oxia")
PROGRAM = [sys.executable, "-m", "anabranch", "metadata"]
Result = tuple[int, str, str]
Say = Callable[..., Result]


class Input(io.TextIOWrapper):
    """Standard input with something in it, from a pipe."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run one verb in this process: its exit code, its standard output, its standard error."""

    def run(*words: str, given: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", Input(given))
        capsys.readouterr()
        code = main(["metadata", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture(params=params(REACHABLE))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(request.param, tmp_path)


@pytest.fixture
def here(tmp_path: Path) -> str:
    """A store that costs nothing."""
    return f"sqlite:///{tmp_path / 'here'}"


def process(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], input=given, capture_output=True, text=True, timeout=60)


def one_line(result: Result, code: int = 1) -> str:
    assert result[0] == code, result
    (line,) = result[2].strip().splitlines()
    assert line.startswith("anabranch: ")
    return line


def as_json(result: Result) -> Any:
    assert result[0] == 0, result
    return json.loads(result[1])


class TestEveryStore:
    def test_life_of_a_key(self, url: str, say: Say) -> None:
        first = as_json(say("put", url, "/a/b", '{"x": 1}', "--expect", "absent", "--json"))
        assert first["key"] == "/a/b" and first["bytes"] == 8
        refused = one_line(say("put", url, "/a/b", "y", "--expect", "absent"))
        assert "expected absent, found version" in refused and "the key changed since you read it" in refused
        second = as_json(say("put", url, "/a/b", "z", "--expect", str(first["version"]), "--json"))
        assert second["version"] != first["version"]
        one_line(say("put", url, "/a/b", "late", "--expect", str(first["version"])))
        found = as_json(say("get", url, "/a/b", "--json"))
        assert (found["value"], found["version"], found["bytes"]) == ("z", second["version"], 1)
        assert found["created_ms"] > 0 and found["ephemeral"] is False
        assert say("ls", url)[1] == "/\n└─ a/\n"
        code, out, _ = say("ls", url, "/", "-r", "--long")
        assert code == 0 and str(second["version"]) in out.splitlines()[-1] and "└─ b" in out
        assert one_line(say("rm", url, "/a")).endswith("(-r deletes those)")
        code, out, _ = say("rm", url, "/a/b", "--yes")
        assert (code, out) == (0, "deleted /a/b\n")
        assert "no metadata under /a/b" in one_line(say("get", url, "/a/b"))
        assert "no metadata under /a/b" in one_line(say("rm", url, "/a/b", "--yes"))

    def test_watch(self, url: str, say: Say) -> None:
        assert say("put", url, "/w/a", "0")[0] == 0
        command = [*PROGRAM, "watch", url, "/w", "--count", "3", "--seconds", "60", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
            assert watcher.stderr is not None
            assert watcher.stderr.readline().startswith("watching /w")
            say("put", url, "/other", "")
            say("put", url, "/w/a", "1")
            say("put", url, "/w/b", "2")
            say("rm", url, "/w/a", "--yes")
            out, complaints = watcher.communicate(timeout=60)
        assert watcher.returncode == 0, complaints
        seen = [(one["kind"], one["key"]) for one in map(json.loads, out.splitlines())]
        assert seen == [("modified", "/w/a"), ("created", "/w/b"), ("deleted", "/w/a")]


@pytest.mark.xdist_group("zk")
def test_watch_reports_a_gap() -> None:
    """A cut connection: missed changes are unknown."""
    server = services.shared("zk").nodes[0]
    with ProxyThread() as between:
        url = f"zk://127.0.0.1:{between.add(server.port)}/gap-{uuid.uuid4().hex}"
        assert process("put", url, "/a", "v").returncode == 0
        command = [*PROGRAM, "watch", url, "--count", "1", "--seconds", "60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
            assert watcher.stderr is not None
            assert watcher.stderr.readline().startswith("watching /")
            between.do(lambda proxy: proxy.cut())
            out, complaints = watcher.communicate(timeout=90)
    assert watcher.returncode == 0, complaints
    assert "INVALIDATED  /  (changes were missed here" in out and "read again" in out


@pytest.mark.xdist_group("zk")
def test_round_trip_through_all_stores(tmp_path: Path) -> None:
    """Real processes, a file and pipes: what comes out at the end is what went in, versions and times included."""
    first = fresh_url("sqlite", tmp_path)
    for key, value in (("/a", "1"), ("/a", "2"), ("/a/b", ""), ("/ü/\x01", "{}"), ("/big", "x" * 90_000)):
        assert process("put", first, key, value).returncode == 0
    began = process("export", first)
    assert began.returncode == 0 and "exported 4 records" in began.stderr
    lines, source = began.stdout.splitlines(), first
    for kind in ("zk", "etcd", "oxia", "sqlite"):
        target = fresh_url(kind, tmp_path)
        exported = subprocess.Popen([*PROGRAM, "export", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        done = subprocess.run(
            [*PROGRAM, "import", target, "--preserve", "--json"], stdin=exported.stdout, capture_output=True, timeout=60
        )
        assert exported.stdout is not None
        exported.stdout.close()
        assert (exported.wait(60), done.returncode) == (0, 0), done.stderr
        assert json.loads(done.stdout)["records"] == 4
        source = target
    file = tmp_path / "last.jsonl"
    assert process("export", source, "-o", str(file), "--json").returncode == 0
    assert sorted(file.read_text().splitlines()) == sorted(lines)
    assert file.stat().st_mode & 0o077 == 0


def test_the_store_of_a_running_broker(broker: BrokerProcess, say: Say) -> None:
    url = f"sqlite:///{broker.data / 'metadata'}"
    assert "├─ namespaces" in say("ls", url)[1]
    keys = {one["key"] for one in as_json(say("ls", url, "-r", "--json")) if one["has_value"]}
    assert {"/tenants/public", "/namespaces/public/default"} <= keys
    assert say("get", url, "/tenants/public")[0] == 0
    exported = process("export", url)
    assert exported.returncode == 0
    assert {json.loads(line).get("key") for line in exported.stdout.splitlines()} >= {"/tenants/public"}


@pytest.mark.parametrize("kind", params(("zk", "etcd", "oxia")))
def test_a_broker_goes_on_with_its_metadata_elsewhere(kind: str, start_broker: StartBroker, tmp_path: Path) -> None:
    """Stop, export, import --preserve, start on the other store: topics, subscriptions and messages are there."""
    topic, file, target = "public/moved/orders", str(tmp_path / "all.jsonl"), fresh_url(kind, tmp_path)
    first = start_broker("data")
    Rest(first.http_url).create_namespace("public/moved")
    client = new_client(first.service_url)
    consumer = client.subscribe(topic, "sub", initial_position=EARLIEST)
    send_all(client.create_producer(topic), payloads(20))
    for value in payloads(20)[:10]:
        message = consumer.receive(timeout_millis=20_000)
        assert message.data() == value
        consumer.acknowledge(message)
    client.close()
    first.stop()
    moved = process("export", f"sqlite:///{first.data / 'metadata'}", "-o", file)
    assert moved.returncode == 0, moved.stderr
    moved = process("import", target, file, "--preserve")
    assert moved.returncode == 0, moved.stderr
    shutil.rmtree(first.data / "metadata")
    second = start_broker("data", arguments=["--metadata", target])
    client = new_client(second.service_url)
    consumer = client.subscribe(topic, "sub")
    assert [consumer.receive(timeout_millis=20_000).data() for _ in range(10)] == payloads(20)[10:]
    client.create_producer(topic).send(b"and on")
    assert consumer.receive(timeout_millis=20_000).data() == b"and on"
    client.close()
    assert not (first.data / "metadata").exists()


class TestLooking:
    @pytest.fixture
    def filled(self, here: str, say: Say) -> str:
        for key, value in (("/a/b/c", "1"), ("/a/d", "22"), ("/e", ""), ("/\x1b[31m", "x")):
            assert say("put", here, key, value)[0] == 0
        return here

    def test_trees(self, filled: str, say: Say) -> None:
        assert say("ls", filled)[1].splitlines() == ["/", "├─ \\x1b[31m", "├─ a/", "└─ e"]
        assert say("ls", filled, "/a", "--depth", "2")[1].splitlines() == ["/a", "├─ b", "│  └─ c", "└─ d"]
        assert say("ls", filled, "/a", "-r")[1] == say("ls", filled, "/a", "--depth", "9")[1]
        assert say("ls", filled, "/e")[2] == "(nothing below)\n"
        assert "nothing at or below /nope" in one_line(say("ls", filled, "/nope"))
        assert say("ls", filled, "-r", "--depth", "2")[0] == 2

    def test_long(self, filled: str, say: Say) -> None:
        heads, top, branch, leaf, last = say("ls", filled, "/a", "--depth", "2", "-l")[1].splitlines()
        assert heads.split() == ["KEY", "VERSION", "CREATED", "MODIFIED", "BYTES", "EPHEMERAL"]
        assert top.split() == ["/a", *"-----"] and branch.split()[2:] == [*"-----"]
        assert leaf.split()[-2:] == ["1", "-"] and last.split()[-2:] == ["2", "-"]

    def test_json(self, filled: str, say: Say) -> None:
        found = as_json(say("ls", filled, "-r", "--json"))
        assert [one["key"] for one in found] == ["/", "/\x1b[31m", "/a", "/a/b", "/a/b/c", "/a/d", "/e"]
        assert [one["has_value"] for one in found] == [False, True, False, False, True, True, True]
        assert found[5]["bytes"] == 2 and found[2]["has_keys_below"] and not found[6]["has_keys_below"]

    def test_reserved_keys_are_read_only(self, filled: str, say: Say) -> None:
        assert ".meta" not in say("ls", filled, "-r")[1]
        for verb in (("put", filled, "/.meta/x", "1"), ("rm", filled, "/.meta", "-r", "--yes")):
            assert "belong to the store itself" in one_line(say(*verb))

    def test_values(self, here: str, say: Say, tmp_path: Path) -> None:
        odd, binary = tmp_path / "odd", bytes(range(256)) * 4
        odd.write_bytes(binary)
        assert say("put", here, "/json", '{"b":[1,"ü"]}')[0] == 0
        assert say("put", here, "/text", given=b"two\nlines\n")[0] == 0
        assert say("put", here, "/odd", "--file", str(odd))[0] == 0
        assert say("put", here, "/control", "a\x1b[31mb")[0] == 0
        assert say("get", here, "/json")[1] == '{\n  "b": [\n    1,\n    "ü"\n  ]\n}\n'
        assert say("get", here, "/json", "--raw")[1] == '{"b":[1,"ü"]}'
        assert say("get", here, "/text")[1] == "two\nlines\n"
        assert say("get", here, "/control")[1] == "a\\x1b[31mb\n"
        shown = say("get", here, "/odd")[1].splitlines()
        assert shown[0].startswith("00 01 02") and shown[-1].startswith("… and 512 bytes more")
        assert "value_base64" in as_json(say("get", here, "/odd", "--json"))
        raw = subprocess.run([*PROGRAM, "get", here, "/odd", "--raw"], capture_output=True, timeout=60)
        assert raw.stdout == binary
        code, _, beside = say("get", here, "/text", "--long")
        assert code == 0 and "10 bytes" in beside

    def test_a_very_deep_key(self, here: str, say: Say) -> None:
        key = "/x" * 3000
        assert say("put", here, key, "v")[0] == 0
        assert len(say("ls", here, "-r")[1].splitlines()) == 3001
        assert len(as_json(say("ls", here, "-r", "--json"))) == 3001


class TestDeleting:
    def test_asks_first(self, here: str, say: Say) -> None:
        say("put", here, "/a", "1")
        say("put", here, "/a/b", "2")
        for answer in (b"", b"n\n", b"\n"):
            result = say("rm", here, "/a", given=answer)
            assert result[0] == 1 and result[2].splitlines()[-1].startswith("anabranch: nothing was deleted")
            assert "(version " in result[2] and "1 name" in result[2]
        assert say("get", here, "/a")[0] == 0
        assert say("rm", here, "/a", given=b"y\n")[0] == 0
        assert say("get", here, "/a")[0] == 1
        assert say("get", here, "/a/b")[0] == 0

    def test_deletes_only_what_was_shown(self, here: str, say: Say) -> None:
        say("put", here, "/a", "shown")
        command = [*PROGRAM, "rm", here, "/a"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as remover:
            assert remover.stderr is not None
            question = ""
            while not question.endswith("[y/N]: "):
                one = remover.stderr.read(1)
                assert one, question
                question += one
            say("put", here, "/a", "changed while it asked")
            _, complaints = remover.communicate("y\n", timeout=60)
        assert remover.returncode == 1 and "the key changed since you read it" in complaints
        assert say("get", here, "/a")[1] == "changed while it asked\n"

    def test_trees_are_counted_first(self, here: str, say: Say) -> None:
        for number in range(5):
            say("put", here, f"/a/{number}", "12")
        say("put", here, "/b", "")
        result = say("rm", here, "/a", "-r", given=b"n\n")
        assert result[0] == 1 and "5 keys at and below /a (10 bytes). Delete them?" in result[2]
        assert as_json(say("rm", here, "/a", "-r", "--yes", "--json")) == {"key": "/a", "deleted": 5}
        assert say("ls", here)[1].splitlines() == ["/", "└─ b"]
        assert "nothing at or below /a" in one_line(say("rm", here, "/a", "-r", "-y"))
        assert say("rm", here, "/", "--yes")[0] == 2
        assert say("rm", here, "/", "-r", "--yes")[1] == "deleted 1 key\n"

    def test_a_version(self, here: str, say: Say) -> None:
        version = as_json(say("put", here, "/a", "1", "--json"))["version"]
        assert "expected version" in one_line(say("rm", here, "/a", "--yes", "--expect", str(version + 1)))
        assert say("rm", here, "/a", "--yes", "--expect", str(version))[0] == 0


class TestCarrying:
    def test_a_target_that_is_not_empty(self, here: str, say: Say, tmp_path: Path) -> None:
        other, file = f"sqlite:///{tmp_path / 'other'}", str(tmp_path / "all")
        say("put", here, "/a", "new")
        assert as_json(say("export", here, "-o", file, "--json"))["records"] == 1
        say("put", other, "/a", "old")
        say("put", other, "/b", "kept")
        assert "the target is not empty (--merge" in one_line(say("import", other, file))
        assert say("import", other, file, "--preserve", "--merge")[0] == 2
        assert say("import", other, file, "--merge")[0] == 0
        assert (say("get", other, "/a")[1], say("get", other, "/b")[1]) == ("new\n", "kept\n")

    def test_a_damaged_file_changes_nothing(self, here: str, say: Say, tmp_path: Path) -> None:
        file = tmp_path / "bad"
        file.write_text('{"anabranch": "metadata", "format": 1, "below": "/"}\n{"key": "/a", "value": ""}\n')
        result = one_line(say("import", here, str(file)))
        assert "cut short" in result and "nothing was written" in result
        file.write_bytes(b"\xff\n")
        assert "not UTF-8" in one_line(say("import", here, str(file)))
        assert "No such file" in one_line(say("import", here, str(tmp_path / "none")))
        assert "no metadata in" in one_line(say("ls", here))

    def test_a_failed_export_leaves_no_file(self, here: str, say: Say, tmp_path: Path) -> None:
        say("put", here, "/a", "")
        assert "bad-key" not in one_line(say("export", here, "a", "-o", str(tmp_path / "file")))
        assert [path.name for path in tmp_path.iterdir()] == ["here"]

    def test_progress_on_a_terminal(self, here: str, tmp_path: Path) -> None:
        """On a terminal a line of progress is wiped away before the summary; elsewhere there is none."""
        assert process("put", here, "/a", "x").returncode == 0
        terminal, side = pty.openpty()
        done = subprocess.run([*PROGRAM, "export", here, "-o", str(tmp_path / "f")], stderr=side, timeout=60)
        os.close(side)
        shown = os.read(terminal, 4096).decode()
        os.close(terminal)
        assert done.returncode == 0
        assert "\x1b[K" in shown and "exported 1 records" in shown.rpartition("\x1b[K")[2]


@contextmanager
def interruptible(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that SIGINT interrupts, also where the tests themselves run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is handled here is the default there
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


class TestFailures:
    def test_reading_creates_no_store(self, here: str, say: Say, tmp_path: Path) -> None:
        for verb in (("ls", here), ("get", here, "/a"), ("watch", here), ("export", here), ("rm", here, "/a", "-y")):
            assert "metadata.db is not there" in one_line(say(*verb))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "written", ["nonsense", "mysql://h/x", "zk://", "zk://h:x", "etcd:", "oxia:x", "sqlite://x"]
    )
    def test_bad_urls(self, written: str, say: Say) -> None:
        one_line(say("ls", written))

    @pytest.mark.parametrize("kind", ["zk", "etcd", "oxia", "mysql"])
    @pytest.mark.parametrize("written", ["me:geheim@127.0.0.1:1/x", "me:geheim/geheim@127.0.0.1:1/x", "geheim@h"])
    def test_passwords_are_never_printed(self, kind: str, written: str, say: Say) -> None:
        for verb in (("ls",), ("put", "/a", "v"), ("export",)):
            result = one_line(say(verb[0], f"{kind}://{written}", *verb[1:]))
            assert "geheim" not in result

    @pytest.mark.parametrize("kind", ["zk", "etcd", "oxia"])
    def test_no_server_there(self, kind: str, say: Say) -> None:
        result = one_line(say("ls", f"{kind}://127.0.0.1:1/x", "--deadline", "0.5"))
        assert f"is a store running at {kind}://127.0.0.1:1/x? --deadline" in result

    @pytest.mark.parametrize("kind", ["zk", "etcd", "oxia"])
    def test_server_that_never_answers(self, kind: str, say: Say) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"{kind}://127.0.0.1:{silent.getsockname()[1]}/x"
            for verb in (("ls", url), ("put", url, "/a", "v"), ("watch", url)):
                assert f"is a store running at {url}?" in one_line(say(*verb, "--deadline", "0.5"))

    @pytest.mark.parametrize("extra", ["etcd", "oxia"])
    def test_a_missing_extra_is_named(self, extra: str) -> None:
        program = (
            "import sys; sys.modules['grpc'] = None; from anabranch.cli.main import main; sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", program, "metadata", "ls", f"{extra}://127.0.0.1:1/x"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert f"pip install 'anabranch[{extra}]'" in one_line((done.returncode, done.stdout, done.stderr))

    def test_bad_keys_and_values(self, here: str, say: Say, tmp_path: Path) -> None:
        for key in ("a", "/a/", "//", "", "/" + "x" * 9000):
            one_line(say("put", here, key, "v"))
        big = tmp_path / "big"
        big.write_bytes(bytes(1_000_001))
        assert "1000001 bytes are more than" in one_line(say("put", here, "/a", "--file", str(big)))
        assert say("put", here, "/a", "v", "--file", str(big))[0] == 2
        assert say("put", here, "/a", "v", "--expect", "sometimes")[0] == 2
        assert "No such file" in one_line(say("put", here, "/a", "--file", str(tmp_path / "none")))

    def test_interrupted(self, here: str) -> None:
        assert process("put", here, "/a", "v").returncode == 0
        with interruptible([*PROGRAM, "watch", here]) as watcher:
            assert watcher.stderr is not None
            watcher.stderr.readline()
            watcher.send_signal(signal.SIGINT)
            _, complaints = watcher.communicate(timeout=60)
        assert (watcher.returncode, complaints.strip()) == (130, "")

    def test_interrupted_while_it_waits_for_a_server(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(60)
            url = f"zk://127.0.0.1:{silent.getsockname()[1]}/x"
            command = [*PROGRAM, "put", url, "/a", "v", "--deadline", "60"]
            with interruptible(command) as writer, silent.accept()[0]:
                writer.send_signal(signal.SIGINT)
                _, complaints = writer.communicate(timeout=30)
            assert (writer.returncode, complaints.strip()) == (130, "")

    def test_too_few_changes(self, here: str, say: Say) -> None:
        say("put", here, "/a", "v")
        result = say("watch", here, "--count", "1", "--seconds", "0.05")
        assert result[0] == 1 and "0 of 1 changes" in result[2]
        assert say("watch", here, "--seconds", "0.05")[0] == 0


def test_every_verb_has_help(say: Say) -> None:
    code, out, _ = say("--help")
    assert code == 0
    for verb in ("ls", "get", "put", "rm", "watch", "export", "import"):
        assert f"\n  {verb} " in out
        code, text, _ = say(verb, "--help")
        assert code == 0 and f"anabranch metadata {verb} " in text and "--json" in text and "Examples:" in text
