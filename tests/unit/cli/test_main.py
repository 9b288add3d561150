"""The command line's own work: layers of settings, one-line failures, quick answers."""

from __future__ import annotations

import errno
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import click
import pytest

import anabranch
from anabranch.cli.errors import EXIT_FAILED, EXIT_USAGE, lines_of, report_error
from anabranch.cli.lazy_group import LazyGroup
from anabranch.cli.main import COMMANDS, main
from anabranch.cli.serve.ready_banner import Greeting
from anabranch.cli.serve.standalone import DEFAULT_DATA, flag_layer, settings_layers
from anabranch.cli.version import native_code
from anabranch.model.errors import Busy
from anabranch.protocol import codec
from anabranch.protocol.native import NATIVE
from anabranch.runtime.settings import SettingsError, load
from anabranch.storage.ledger import record_runs


@dataclass(frozen=True)
class Storage:
    dir: Path
    sync: str = "group"


@dataclass(frozen=True)
class Port:
    host: str = "127.0.0.1"
    port: int = 1


@dataclass(frozen=True)
class Root:
    storage: Storage
    network: Port
    http: Port


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["version"] == anabranch.__version__
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"anabranch {anabranch.__version__}"


def test_version_says_whether_c_code_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ANABRANCH_NATIVE", raising=False)
    is_built = NATIVE is not None and record_runs.NATIVE is not None and codec.core.NATIVE is not None
    assert native_code().startswith("in use" if is_built else "not in use for ")
    monkeypatch.setenv("ANABRANCH_NATIVE", "off")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "C code: not in use (ANABRANCH_NATIVE=off)"
    monkeypatch.delenv("ANABRANCH_NATIVE")
    monkeypatch.setattr(anabranch, "__file__", str(tmp_path / "__init__.py"))  # nothing is built there
    assert native_code() == "not in use for protocol, codec, storage (Python instead, with the same results)"
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / f"_native{EXTENSION_SUFFIXES[0]}").write_bytes(b"not an extension")
    assert native_code().startswith("not in use for protocol, ")


def test_help_names_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_quick_questions_load_little() -> None:
    program = (
        "import sys; from anabranch.cli.main import main; main(['--version']);"
        "print(sorted(m for m in sys.modules if m in ('asyncio','click','sqlite3','google.protobuf','h11','tomllib')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["standalone", "--nonsense"], ["standalone", "--port", "x"], ["config", "nonsense"]]
)
def test_wrong_usage_exits_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "Error:" in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["admin", "scalable-topics", "split"], "'split-segment'"),
        (["admin", "scalable-topics", "merge"], "'merge-segments'"),
        (["admin", "topics", "lst"], "'list'"),
        (["admin", "topcs"], "'topics'"),
        (["standalon"], "'standalone'"),
        (["spark", "copi"], "'copy'"),
        (["metadata", "expor"], "'export'"),
        (["token", "secret"], "'create-secret-key'"),
    ],
)
def test_unknown_command_suggests_the_nearest(
    arguments: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"No such command '{arguments[-1]}'. Did you mean {suggestion}?" in capsys.readouterr().err


def test_unknown_command_without_a_near_one_suggests_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "xyzzy"]) == 2
    assert "No such command 'xyzzy'.\n" in capsys.readouterr().err


def commands(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands((*path, name), inner)


def test_every_command_answers_help_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(commands((), LazyGroup("anabranch", COMMANDS, help="")))
    assert len(found) > 200
    for path in found:
        if path == ("token", "create"):  # its -h is --headers, as in Pulsar's tool
            continue
        assert main([*path, "-h"]) == 0, path
        assert capsys.readouterr().out.startswith(f"Usage: {' '.join(('anabranch', *path))}"), path


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[storage]\nsync = "none"\ndir = "/file"\n[http]\nport = 3\n[network]\nport = 3\n')
    environ = {"ANABRANCH_HTTP_PORT": "4", "ANABRANCH_NETWORK_PORT": "4"}
    flags = flag_layer({"port": 5, "host": "0.0.0.0", "data": None}, ("storage.sync=linger:2ms",))
    root = load(Root, settings_layers(Root, config, environ, flags))
    assert (root.storage.dir, root.storage.sync) == (Path("/file"), "linger:2ms")
    assert (root.network, root.http) == (Port("0.0.0.0", 5), Port("0.0.0.0", 4))


def test_without_anything_the_data_directory_has_a_default() -> None:
    root = load(Root, settings_layers(Root, None, {}, flag_layer({}, ())))
    assert root.storage.dir == Path(DEFAULT_DATA)


def test_set_without_value_is_reported() -> None:
    with pytest.raises(SettingsError, match=r"--set storage\.sync: is not like"):
        load(Root, settings_layers(Root, None, {}, flag_layer({}, ("storage.sync",))))


def test_failures_are_lines() -> None:
    assert lines_of(SettingsError(["a: bad"])) == ["a: bad"]
    assert lines_of(SettingsError(["a: bad", "b: worse"])) == ["2 settings are wrong:", "  a: bad", "  b: worse"]
    assert lines_of(Busy("the data directory\n is in use")) == ["the data directory is in use"]
    assert lines_of(PermissionError(errno.EACCES, "Permission denied", "/x")) == ["/x: Permission denied"]
    in_use = lines_of(OSError(errno.EADDRINUSE, "port 6650 is in use"))
    assert in_use is not None and in_use[0].startswith("port 6650 is in use; ")
    assert lines_of(KeyError("a bug")) is None


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(Busy("in use")) == EXIT_FAILED
    assert report_error(SettingsError(["x"])) == EXIT_USAGE
    assert capsys.readouterr().err == "anabranch: in use\nanabranch: x\n"
    with pytest.raises(KeyError):
        report_error(KeyError("a bug"))


def test_ready_banner_shows_addresses_and_usage() -> None:
    text = str(Greeting("1.0", "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080", Path("/d"), "group", 0.5))
    assert "pulsar://127.0.0.1:6650" in text and "http://127.0.0.1:8080" in text and "/d" in text
    assert "pulsar.Client('pulsar://127.0.0.1:6650')" in text
    assert "loses" not in text
    assert "loses" in str(Greeting("1.0", "p", "h", Path("/d"), "none", 0.5))


def test_ready_banner_of_tls_ports_alone_names_them_once() -> None:
    urls = ("pulsar+ssl://h:6651", "https://h:8443")
    text = str(Greeting("1.0", *urls, Path("/d"), "group", 0.5, tls_urls=urls))
    assert "  TLS  " not in text and "tls_trust_certs_file_path" in text
    both = str(Greeting("1.0", "pulsar://h:6650", "http://h:8080", Path("/d"), "group", 0.5, tls_urls=urls))
    assert "  TLS       pulsar+ssl://h:6651 and https://h:8443\n" in both
