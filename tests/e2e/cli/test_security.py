"""The command line at a broker that wants tokens and speaks TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.cli.main import main
from anabranch.testing import Broker
from tests.support.in_memory.credentials import Authority, token_of, write_secret


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def broker(directory: Path, authority: Authority) -> Iterator[Broker]:
    files = authority.issue("broker")
    settings = {
        "security.methods": ("token",),
        "security.authorization": True,
        "security.superusers": ("root",),
        "security.token_secret_key": str(write_secret(directory)),
        "tls.cert_file": files.certificate,
        "tls.key_file": files.key,
        "tls.port": 0,
        "tls.http_port": 0,
    }
    with Broker(settings=settings) as running:
        yield running


def test_token_is_accepted_on_both_ports(
    broker: Broker, directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = ["admin", "tenants", "list", "--admin-url", broker.http_url]
    produce = ["produce", "t", "-m", "hello", "--url", broker.service_url]
    for command in (tenants, produce):
        assert main(command) == 1
        text = capsys.readouterr().err
        assert "--token" in text and text.count("\n") == 1
        assert main([*command, "--token", token_of("stranger")]) == 1, "signed in, but not allowed"
        text = capsys.readouterr().err
        assert text.startswith("anabranch: ") and token_of("stranger") not in text
        assert main([*command, "--token", token_of("root")]) == 0
        capsys.readouterr()
    file = directory / "root.token"
    file.write_text(token_of("root") + "\n")
    monkeypatch.setenv("ANABRANCH_TOKEN", f"file:{file}")
    assert main(tenants) == main(produce) == 0


def test_tls_on_both_ports(
    broker: Broker, authority: Authority, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", token_of("root"))
    assert main(["admin", "topics", "lookup", "t", "--json", "--admin-url", broker.http_url]) == 0
    found = json.loads(capsys.readouterr().out)
    https, secure = found["httpUrlTls"], found["brokerUrlTls"]
    assert main(["admin", "tenants", "list", "--admin-url", https]) == 1, "its certificate is not trusted"
    assert main(["produce", "t", "-m", "x", "--url", secure]) == 1
    text = capsys.readouterr().err
    assert text.count("\n") == 2 and text.count("TLS with") == 2
    monkeypatch.setenv("ANABRANCH_TLS_TRUST_CERTS", str(authority.path))
    assert main(["admin", "tenants", "list", "--admin-url", https]) == 0
    assert main(["produce", "t", "-m", "over TLS", "--url", secure]) == 0
    capsys.readouterr()
    assert main(["consume", "t", "-s", "s", "--from", "earliest", "--timeout", "1s", "--url", secure]) == 0
    assert "over TLS" in capsys.readouterr().out
