"""A real browser for the tests of the web console: one per module, a context per test.

A console error, an exception in a page, a dialog of the browser or a request to another origin fails the test.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from playwright.sync_api import sync_playwright

from tests.services.available import browser as program
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest
from tests.support.traffic.stock_client import new_client

NAMESPACE = "public/default"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


class Watched:
    """One page, and what must not happen in it."""

    def __init__(self, page: Any, broker: BrokerProcess) -> None:
        self.page = page
        self.broker = broker
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: Any) -> None:
        expected = "Failed to load resource" in message.text  # refusals, which the page shows
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str = "") -> Any:
        self.page.goto(f"{self.broker.http_url}/#/{path}")
        return self.page

    def foreign_requests(self) -> list[str]:
        here = {urlsplit(self.broker.http_url).netloc}
        return [url for url in self.requests if urlsplit(url).scheme != "data" and urlsplit(url).netloc not in here]

    def check(self) -> None:
        assert self.complaints == []
        assert self.foreign_requests() == []


@pytest.fixture(scope="module")  # its event loop must not run in the asyncio tests of other modules
def chromium() -> Iterator[Any]:
    executable = program()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def view(chromium: Any, broker: BrokerProcess) -> Iterator[Watched]:
    """A page on the shared broker."""
    context = chromium.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(20_000)
    watched = Watched(context.new_page(), broker)
    yield watched
    context.close()
    watched.check()


@pytest.fixture
def rest(view: Watched) -> Rest:
    return Rest(view.broker.http_url)


@pytest.fixture
def name() -> str:
    return f"p-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def stock(view: Watched) -> Iterator[pulsar.Client]:
    client = new_client(view.broker.service_url)
    yield client
    client.close()


def button(page: Any, text: str) -> Any:
    return page.get_by_role("button", name=text, exact=True)


def confirm(page: Any, typed: str = "") -> None:
    """Ends the dialog; with `typed` its button is off until that name is there."""
    last = page.locator("dialog .buttons button").last
    last.wait_for()
    if typed:
        assert last.is_disabled(), "the name must be typed first"
        page.locator("dialog input").fill(typed)
    last.click()
    page.locator("dialog").wait_for(state="detached")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failed test shows the text of its page."""
    report = yield
    watched = getattr(item, "funcargs", {}).get("view")
    if report.failed and report.when == "call" and isinstance(watched, Watched):
        text = watched.page.evaluate("document.body.innerText")
        report.sections.append(("page", f"{watched.page.url}\n{watched.complaints}\n{text[:2000]}"))
    return report
