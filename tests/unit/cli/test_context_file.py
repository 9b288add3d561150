"""The file of contexts: what it holds, who may read it, and which values win."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from anabranch.cli.context_file import BadContexts, Contexts, NoSuchContext, in_use, load, path_of, save
from anabranch.cli.main import main

PROD = {"admin_url": "https://prod:8443", "token": 'a "quoted" \\ token'}


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder), **more}


def test_first_context_is_in_use_and_dash_is_the_one_before() -> None:
    contexts = Contexts().adding("local", {"url": "pulsar://h"}).adding("prod", PROD)
    assert contexts.current == "local"
    used = contexts.using("prod")
    assert (used.current, used.previous) == ("prod", "local")
    assert used.using("-").current == "local" and used.using("-").using("-").current == "prod"
    assert used.removing("prod").current == "" and used.removing("local").previous == ""
    with pytest.raises(NoSuchContext, match="known: local, prod"):
        contexts.using("nowhere")
    with pytest.raises(NoSuchContext):
        Contexts().using("-")


def test_file_keeps_what_was_saved_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = path_of(environment(tmp_path))
    contexts = Contexts().adding("we ird.name", PROD).adding("b", {"url": "pulsar://h"}).using("b")
    save(path, contexts)
    assert load(path) == contexts
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["contexts.toml"]
    path.chmod(0o640)
    with pytest.raises(BadContexts, match="chmod 600"):
        load(path)


@pytest.mark.parametrize("text", ["[", "[contexts.a]\nurl = 1", "[contexts.a]\nrul = 'x'", "[contexts]\na = 'x'"])
def test_wrong_files_are_named(text: str) -> None:
    with pytest.raises(BadContexts):
        Contexts.parse(text)


def test_values_come_from_the_context_in_use_or_the_one_that_is_named(tmp_path: Path) -> None:
    assert in_use(environment(tmp_path)) == {}
    save(path_of(environment(tmp_path)), Contexts().adding("local", {"url": "pulsar://h"}).adding("prod", PROD))
    assert in_use(environment(tmp_path)) == {"url": "pulsar://h"}
    assert in_use(environment(tmp_path, ANABRANCH_CONTEXT="prod")) == PROD
    with pytest.raises(NoSuchContext):
        in_use(environment(tmp_path, ANABRANCH_CONTEXT="nowhere"))


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ANABRANCH_CONTEXT", raising=False)
    assert main(["context", "list"]) == 0
    assert main(["context", "add", "local", "--admin-url", "http://127.0.0.1:1"]) == 0
    assert main(["context", "add", "prod", "--admin-url", "http://127.0.0.1:2", "--token", "eyJsecret"]) == 0
    assert main(["context", "use", "prod"]) == 0
    capsys.readouterr()
    assert main(["context", "list"]) == 0
    shown = capsys.readouterr().out
    assert "*" in shown and "http://127.0.0.1:2" in shown and "eyJsecret" not in shown
    assert main(["admin", "tenants", "list"]) == 1  # nobody listens there: the address is that of the context
    assert "127.0.0.1:2" in capsys.readouterr().err
    assert main(["admin", "tenants", "list", "--admin-url", "http://127.0.0.1:3"]) == 1
    assert "127.0.0.1:3" in capsys.readouterr().err
    assert main(["context", "use", "-"]) == 0
    assert main(["context", "remove", "prod"]) == 0
    assert load(path_of(os.environ)).by_name == {"local": {"admin_url": "http://127.0.0.1:1"}}
    assert main(["context", "use", "prod"]) == 1
