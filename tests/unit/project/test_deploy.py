"""deploy/: the systemd unit, its settings and the Dockerfile, as far as they can be checked without installing them."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from anabranch.cli.main import main
from anabranch.node.settings.node import NodeSettings
from anabranch.runtime.settings import file_layer, load

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "anabranch.service").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
STEPS = re.findall(r"^([A-Z]+) (.+)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)


def unit(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def arguments(step: str) -> list[str]:
    (value,) = [value for name, value in STEPS if name == step]
    found: list[str] = shlex.split(value.replace("[", " ").replace("]", " ").replace(",", " "))
    return found


def help_of(*command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        main([*command, "--help"])
    return shown.getvalue()


def check_options(command: list[str]) -> None:
    """Every `--option` of the command line is one of the command's."""
    verb, given = command[0], [word for word in command[1:] if word.startswith("--")]
    known = help_of(verb)
    assert given
    assert [option for option in given if option not in known] == []


def test_unit_starts_a_broker_as_an_unprivileged_user() -> None:
    program, *command = shlex.split(unit("ExecStart"))
    assert program.endswith("/bin/anabranch")
    check_options(command)
    assert unit("User") == "anabranch"
    assert (unit("NoNewPrivileges"), unit("ProtectSystem"), unit("CapabilityBoundingSet")) == ("yes", "strict", "")
    assert (unit("Restart"), unit("Type")) == ("on-failure", "exec")


def test_unit_may_write_the_data_directory_of_its_settings() -> None:
    settings = load(NodeSettings, [file_layer(DEPLOY / "anabranch.toml")])
    assert settings.storage.dir.is_relative_to(Path("/var/lib") / unit("StateDirectory"))
    assert settings.network.host == settings.http.host == "127.0.0.1"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    """The program of the unit is not installed here, so another one takes its place."""
    checked = tmp_path / "anabranch.service"
    checked.write_text(UNIT.replace("/opt/anabranch/bin/anabranch", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(checked)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if "anabranch" in line]
    assert complaints == []


def test_image_has_two_stages_and_runs_as_another_user_than_root() -> None:
    names = [name for name, _ in STEPS]
    assert names.count("FROM") == 2
    last = names[len(names) - names[::-1].index("FROM") :]
    assert last.index("USER") < last.index("ENTRYPOINT")
    assert arguments("USER") == ["10001:10001"]


def test_image_starts_and_checks_a_broker_with_commands_that_exist() -> None:
    assert arguments("ENTRYPOINT") == ["anabranch"]
    check_options(arguments("CMD"))
    probe = arguments("HEALTHCHECK")
    assert probe[probe.index("CMD") + 1 :][:2] == ["anabranch", "admin"]
    assert probe[-1] in help_of("admin", "brokers")


def test_image_copies_files_that_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [value.split()[:-1] for name, value in STEPS if name == "COPY" and not value.startswith("--from")]
    for source in [one for some in sources for one in some]:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_no_address_of_a_package_registry_is_named(path: Path) -> None:
    assert not re.search(r"https?://(?!127\.0\.0\.1|localhost)", path.read_text())
