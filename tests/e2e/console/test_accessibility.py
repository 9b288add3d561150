"""Every page of the console in both themes, checked by axe-core: names, roles, contrast, focus order."""

from __future__ import annotations

import uuid

import pulsar
import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.e2e.console.conftest import Watched
from tests.support.traffic.stock_calls import Rest

SCALABLE = "/admin/v2/scalable/public/default"
SCALABLE_PARTS = "metric=state&messages=1&look=start&subscription=audit&consumers=audit&policy=1&move=audit"
REGULAR_PARTS = "consumers=billing&messages=1&migrate=1&ledgers=1&move=billing"
PAGES = {
    "": ".sentence",
    "topics": ".rows a",
    "namespaces": "td a",
    "namespace/public/default": ".grant",
    "brokers": "code",
    "metadata": ".form",
    "operations": "td.call",
    f"topic/public/default/{{topic}}?{SCALABLE_PARTS}": ".hit",
    f"regular/regular/public/default/{{topic}}-r?{REGULAR_PARTS}": ".checklist",
    "schemas/scalable/public/default/{topic}": ".detail",
    "nowhere": ".empty",
}
pytestmark = pytest.mark.slow


SCHEMA = {"type": "AVRO", "schema": '{"type":"record","name":"A","fields":[]}', "properties": {"a": "b"}}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(view: Watched, client: pulsar.Client, scheme: str) -> None:
    rest, topic = Rest(view.broker.http_url), f"axe-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"{SCALABLE}/{topic}?numInitialSegments=2", {})
    rest.expect("PUT", f"{SCALABLE}/{topic}/subscriptions/audit")
    rest.expect("POST", f"{SCALABLE}/{topic}/split/0")
    rest.expect("POST", f"/admin/v2/schemas/public/default/{topic}/schema", SCHEMA)
    rest.expect("POST", "/admin/v2/namespaces/public/default/permissions/viewer", ["consume"])
    client.subscribe(f"persistent://public/default/{topic}-r", "billing")
    client.create_producer(f"persistent://public/default/{topic}-r").send(b"x", properties={"a": "b"})
    view.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found = []
    for path, ready in PAGES.items():
        page = view.open(path.format(topic=topic))
        page.locator(ready).first.wait_for()
        if path.startswith("regular/"):
            page.locator("button", has_text="Write one").click()
            page.locator(".preview").first.click()
            page.locator("section[aria-label=consumers] td").first.wait_for()
        if path.startswith("topic/"):
            page.locator(".fields").wait_for()
            page.locator("section[aria-label=consumers] td").first.wait_for()
            page.locator(".messages input").wait_for()
            page.locator(".hit").first.click()
            page.locator("td", has_text="audit").first.wait_for()
        for one in Axe().run(page).response["violations"]:
            nodes = [node["target"] for node in one["nodes"][:3]]
            found.append(f"{path}: {one['id']}: {one['help']} {nodes} {one['nodes'][0].get('failureSummary', '')}")
    assert found == []
