"""Every page of the console from each of three brokers, and one that is killed while pages are open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.console.conftest import NAMESPACE, Watched
from tests.support.processes.cluster import ClusterProcesses
from tests.support.traffic.stock_calls import Rest

SCALABLE, REGULAR = f"/admin/v2/scalable/{NAMESPACE}", f"/admin/v2/persistent/{NAMESPACE}"
PAGES = {
    "": ".sentence",
    "topics": ".rows a",
    "namespaces": "td a",
    f"namespace/{NAMESPACE}": ".grant",
    "brokers": "td .kind",
    "metadata": ".form",
    "operations": "td.call",
}
TOPIC_PAGES = {
    "topic/{place}?messages=1&look=start&consumers=audit&move=audit": ".preview",
    "regular/regular/{place}-r?messages=1&ledgers=1&consumers=billing": ".preview",
    "schemas/regular/{place}-r": ".form",
}
TOPICS = [f"t{number}" for number in range(6)]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("console"), 3, session_ms=3_000) as started:
        yield started


def made(cluster: ClusterProcesses) -> None:
    """Topics of all brokers: segments and regular ones are placed by their hash."""
    rest = Rest(cluster.http_url)
    for name in TOPICS:
        rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=3", {})
        rest.expect("PUT", f"{SCALABLE}/{name}/subscriptions/audit")
        rest.expect("PUT", f"{REGULAR}/{name}-r")
        rest.expect("PUT", f"{REGULAR}/{name}-r/subscription/billing", "earliest")
        rest.expect("POST", f"/anabranch/v1/scalable/{NAMESPACE}/{name}/messages", {"messages": messages()})
        rest.expect("POST", f"/topics/persistent/{NAMESPACE}/{name}-r", {"messages": messages()})


def messages() -> list[dict[str, str]]:
    return [{"payload": f"m{number}", "key": f"k{number}"} for number in range(12)]


def test_every_page_is_whole_at_every_broker_and_a_killed_one_is_survived(
    chromium: Any, cluster: ClusterProcesses
) -> None:
    made(cluster)
    seen = []
    for broker in cluster.alive:
        context = chromium.new_context(viewport={"width": 1360, "height": 900})
        context.set_default_timeout(30_000)
        watched = Watched(context.new_page(), broker)
        for path, ready in PAGES.items():
            watched.open(path).locator(ready).first.wait_for()
            assert watched.page.locator(".failure").count() == 0, path
        for name in TOPICS:
            for path, ready in TOPIC_PAGES.items():
                watched.open(path.format(place=f"{NAMESPACE}/{name}")).locator(ready).first.wait_for()
                assert watched.page.locator(".failure").count() == 0, (path, name)
        watched.open("operations?q=PUT").locator("td.call", has_text=TOPICS[0]).first.wait_for()
        watched.check()
        seen.append((context, watched))
    for _, watched in seen:
        watched.open(f"topic/{NAMESPACE}/{TOPICS[0]}").locator(".live.live").wait_for()
    Rest(cluster.http_url).expect("POST", f"{SCALABLE}/{TOPICS[0]}/split/1")
    for _, watched in seen:
        watched.page.locator('.hit[data-segment="4"]').wait_for()
    killed = seen[0][1].broker
    killed.kill9()
    seen[0][1].page.locator("p.lost").wait_for()
    for _, watched in seen[1:]:
        watched.page.locator('.hit[data-segment="0"]').wait_for()
        watched.page.locator(".live.live").wait_for()
    Rest(seen[1][1].broker.http_url).expect("POST", f"{SCALABLE}/{TOPICS[0]}/split/0")
    for _, watched in seen[1:]:
        watched.page.locator('.hit[data-segment="6"]').wait_for()
    killed.start()
    seen[0][1].page.locator(".live.live").wait_for()
    seen[0][1].page.locator('.hit[data-segment="6"]').wait_for()
    for context, watched in seen:
        assert watched.foreign_requests() == [] and watched.complaints == []
        context.close()
