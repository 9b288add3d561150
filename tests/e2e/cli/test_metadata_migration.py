"""`anabranch admin metadata-migration` on one broker, as an operator uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.cli.main import main
from tests.support.processes.broker_process import BrokerProcess


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
    source = json.loads(run("metadata-migration", "status", "--json"))["sourceUrl"]
    assert "earlier migration" in run("metadata-migration", "start", "--target", source, code=1)
    assert "COMPLETED" in run("metadata-migration", "start", "--target", source, "--wait", "--purge-target")
    assert "later" in run("topics", "list", "public/default")
    private_broker.restart()
