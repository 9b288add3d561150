"""The page that shows the HTTP API, in a real browser: every operation is there, and it asks for credentials."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import StartBroker
from tests.services.available import browser
from tests.support.in_memory.credentials import write_secret
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000"),
)
pytestmark = pytest.mark.slow


def dom(url: str, profile: Path) -> str:
    """The page as it is after its scripts ran."""
    done = subprocess.run(
        [browser(), *FLAGS, f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Uncaught" not in done.stderr, done.stderr
    return done.stdout


def test_every_operation_is_shown(broker: BrokerProcess, tmp_path: Path) -> None:
    api = Rest(broker.http_url).expect("GET", "/openapi.json")
    shown = dom(f"{broker.http_url}/docs", tmp_path)
    assert shown.count("<details") == sum(len(verbs) for verbs in api["paths"].values())
    assert api["info"]["version"] in shown
    sections = set(re.findall(r'<h2 id="at-([^"]+)"', shown))
    assert {"brokers", "clusters", "namespaces", "schemas", "subscriptions", "tenants", "topics"} <= sections
    assert all(f'href="#at-{name}"' in shown for name in sections)


def test_page_asks_for_credentials(start_broker: StartBroker, tmp_path: Path) -> None:
    words = ["security.methods=token", f"security.token_secret_key={write_secret(tmp_path)}"]
    broker = start_broker(arguments=[part for word in words for part in ("--set", word)])
    assert Rest(broker.http_url).call("GET", "/openapi.json")[0] == 401
    shown = dom(f"{broker.http_url}/docs", tmp_path / "profile")
    assert "Sign in: put a token" in shown and "<details" not in shown


def test_status(broker: BrokerProcess, tmp_path: Path) -> None:
    assert ">OK<" in dom(f"{broker.http_url}/status.html", tmp_path)
