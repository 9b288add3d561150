"""Every page of the console in both themes, checked by axe-core: names, roles, contrast, focus order."""

from __future__ import annotations

import uuid

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.e2e.console.conftest import Watched
from tests.support.traffic.stock_calls import Rest

SCALABLE = "/admin/v2/scalable/public/default"
PAGES = {
    "": ".sentence",
    "topics": ".rows a",
    "namespaces": "td a",
    "namespace/public/default": "h2",
    "brokers": "code",
    "metadata": "code",
    "topic/public/default/{topic}?metric=state&messages=1&subscription=audit": ".hit",
    "nowhere": ".empty",
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(view: Watched, scheme: str) -> None:
    rest, topic = Rest(view.broker.http_url), f"axe-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"{SCALABLE}/{topic}?numInitialSegments=2", {})
    rest.expect("PUT", f"{SCALABLE}/{topic}/subscriptions/audit")
    rest.expect("POST", f"{SCALABLE}/{topic}/split/0")
    view.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found = []
    for path, ready in PAGES.items():
        page = view.open(path.format(topic=topic))
        page.locator(ready).first.wait_for()
        if "topic/" in path:
            page.locator(".messages input").wait_for()
            page.locator(".hit").first.click()
            page.locator("td", has_text="audit").first.wait_for()
        for one in Axe().run(page).response["violations"]:
            nodes = [node["target"] for node in one["nodes"][:3]]
            found.append(f"{path}: {one['id']}: {one['help']} {nodes} {one['nodes'][0].get('failureSummary', '')}")
    assert found == []
