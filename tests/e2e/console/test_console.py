"""The web console in a real browser, on real brokers."""

from __future__ import annotations

import re
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import anabranch.blocking
from tests.e2e.conftest import StartBroker
from tests.e2e.console.conftest import Watched
from tests.support.in_memory.credentials import token_of, write_secret
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

SCALABLE = "/admin/v2/scalable/public/default"
WAIT_MS = 20_000
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "a\u200bb\u2066c",
    "'; rm -rf $HOME; '",
    "{{constructor.constructor('alert(1)')()}}",
)
pytestmark = pytest.mark.slow


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A scalable topic with two segments."""
    name = f"c-{uuid.uuid4().hex[:10]}"
    Rest(broker.http_url).expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    return name


def path_of(name: str) -> str:
    return f"topic/public/default/{urllib.parse.quote(name, safe='')}"


def segment(page: Any, number: int) -> Any:
    return page.locator(f'.hit[data-segment="{number}"]')


def no_segment(page: Any, number: int) -> None:
    segment(page, number).wait_for(state="detached")


def test_overview_and_topics_show_what_is_there(view: Watched, topic: str) -> None:
    rest = Rest(view.broker.http_url)
    rest.call("PUT", "/admin/v2/clusters/another", {"serviceUrl": "http://127.0.0.1:1"})  # is not this broker's
    page = view.open()
    page.locator(".sentence", has_text="1 broker").wait_for()
    rest.call("DELETE", "/admin/v2/clusters/another")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.locator(".rows a", has_text=topic).wait_for()
    page.keyboard.press("/")
    page.keyboard.type(topic)
    expect(page.locator(".rows tbody tr")).to_have_count(1, timeout=WAIT_MS)
    assert f"q={topic}" in page.url
    page.reload()  # the state is in the URL
    page.locator(".rows a", has_text=topic).click()
    page.locator("h1", has_text=topic).wait_for()
    assert page.title().startswith(topic)


def test_split_by_others_is_seen_within_a_second_and_merge_by_hand(view: Watched, topic: str) -> None:
    page = view.open(path_of(topic))
    segment(page, 1).wait_for()
    page.locator(".live.live").wait_for()
    began = time.monotonic()
    Rest(view.broker.http_url).expect("POST", f"{SCALABLE}/{topic}/split/1")
    segment(page, 3).wait_for()
    shown_after = time.monotonic() - began
    no_segment(page, 1)
    assert shown_after < 10, "a deadline for a busy machine; the push itself takes milliseconds"
    segment(page, 2).click()
    page.locator("button", has_text="Merge with 3").click()
    page.locator("dialog").wait_for()
    assert "No message is lost" in page.locator("dialog").inner_text()
    page.locator("dialog button.primary").click()
    segment(page, 4).wait_for()
    no_segment(page, 2)
    assert Rest(view.broker.http_url).expect("GET", f"{SCALABLE}/{topic}")["epoch"] == 2


def test_keyboard_alone_splits_a_segment(view: Watched, topic: str) -> None:
    page = view.open(path_of(topic))
    segment(page, 0).wait_for()
    segment(page, 0).focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.segment") == "1"
    page.keyboard.press("Enter")
    page.locator("button", has_text="Split …").focus()
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    page.locator("button", has_text="Split …").press("Enter")
    page.locator("dialog button.primary").press("Enter")
    segment(page, 3).wait_for()


def test_cut_is_dragged_and_past_epochs_are_shown(view: Watched, topic: str) -> None:
    page = view.open(path_of(topic))
    segment(page, 0).click()
    cut = page.get_by_role("slider", name="cut of segment 0")
    box = cut.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + box["height"] / 2 - 50)
    page.mouse.up()
    dragged = int(cut.get_attribute("aria-valuenow"))
    assert 0 < dragged < 0x4000, "above the middle"
    cut.press("ArrowUp")
    at = int(cut.get_attribute("aria-valuenow"))
    assert at == dragged - 0x8000 // 64
    page.locator("button", has_text="Split …").click()
    page.locator("dialog summary").click()
    assert f"--at {at:x}" in page.locator("dialog").inner_text()
    page.locator("dialog button.primary").click()
    segment(page, 3).wait_for()
    ranges = Rest(view.broker.http_url).expect("GET", f"{SCALABLE}/{topic}")["segments"]
    assert ranges["3"]["hashRange"]["start"] == at
    scrubber = page.get_by_role("slider", name="epoch")
    scrubber.focus()
    page.keyboard.press("ArrowLeft")
    segment(page, 0).wait_for()
    no_segment(page, 2)
    assert "epoch=0" in page.url
    page.locator("button", has_text="Now").click()
    segment(page, 2).wait_for()


def test_timeline_has_painted_and_marks_states(view: Watched, topic: str) -> None:
    with anabranch.blocking.connect(view.broker.service_url) as client:
        with client.producer(f"topic://public/default/{topic}") as producer:
            for number in range(50):
                producer.send(b"x", key=f"k{number}")
        Rest(view.broker.http_url).expect("PUT", f"{SCALABLE}/{topic}/subscriptions/audit?start=earliest")
        Rest(view.broker.http_url).expect("POST", f"{SCALABLE}/{topic}/split/0")
        page = view.open(path_of(topic) + "?metric=state&scale=epoch&subscription=audit")
        segment(page, 2).wait_for()
        expect(segment(page, 1)).to_have_attribute("aria-label", re.compile("unread"), timeout=WAIT_MS)
        colours = page.evaluate(
            """() => {
                const canvas = document.querySelector("canvas"), copy = document.createElement("canvas");
                [copy.width, copy.height] = [canvas.width, canvas.height];
                const pen = copy.getContext("2d", {willReadFrequently: true});
                pen.drawImage(canvas, 0, 0);
                const at = (x, y) => pen.getImageData(canvas.width * x, canvas.height * y, 1, 1).data.join();
                return [at(0.25, 0.75), at(0.75, 0.1), at(0.25, 0.25)];
            }"""
        )
        assert all(not one.endswith(",0") for one in colours), "nothing is painted there"
        page.locator("td", has_text="audit").first.wait_for()
        assert "50" in page.locator("tr", has_text="audit").inner_text()


def test_messages_are_shown_as_they_come_and_stay_text(view: Watched, topic: str) -> None:
    payloads = [b'{"big":12345678901234567890,"a":[]}', b"<img src=x onerror=alert(1)>", b"\xff\xfe", b"x" * 5000]
    with (
        anabranch.blocking.connect(view.broker.service_url) as client,
        client.producer(f"topic://public/default/{topic}") as producer,
    ):
        page = view.open(path_of(topic))
        page.locator(".messages button", has_text="Show them").click()
        page.locator(".messages .hint", has_text="newest 0").wait_for()
        for number, payload in enumerate(payloads):
            producer.send(payload, key=f"k{number}\u202e", properties={"p": "<b>v</b>"})
        page.locator(".messages .hint", has_text="newest 4").wait_for()
        page.locator(".messages button", has_text="Pause").click()
        producer.send(b"later", key="k9")
    rows = page.locator(".messages tbody tr")
    assert rows.count() == 4 and page.locator("main img").count() == 0
    page.locator(".preview", has_text="big").click()
    assert "12345678901234567890" in page.locator(".detail pre").inner_text(), "numbers stay exact"
    page.locator(".preview", has_text="2 bytes that are not text").click()
    assert page.locator(".detail pre").inner_text().startswith("0000  ff fe")
    page.locator(".messages button", has_text="Resume").click()
    page.locator(".messages .hint", has_text="newest 5").wait_for()
    page.locator(".messages input").fill("key:k9 later")
    expect(page.locator(".messages .preview")).to_have_count(1, timeout=WAIT_MS)


def test_hostile_names_stay_text(view: Watched) -> None:
    rest = Rest(view.broker.http_url)
    for name in HOSTILE:
        status, answer = rest.call("PUT", f"{SCALABLE}/{urllib.parse.quote(name, safe='')}", {})
        assert status in (204, 409), answer
    page = view.open("topics")
    for name in HOSTILE:
        page.locator("input[type=search]").fill(name)  # the shared broker may have more topics than rows are drawn
        shown = re.sub("[\u202e\u200b\u2066]", lambda found: f"\\u{ord(found[0]):04x}", name)
        page.locator(".rows a", has_text=shown).first.wait_for()
    for name in HOSTILE:
        view.open(path_of(name))
        segment(page, 0).wait_for()
        assert page.locator("main img").count() == 0
    for name in HOSTILE:  # the shared broker stays clean
        rest.expect("DELETE", f"{SCALABLE}/{urllib.parse.quote(name, safe='')}?force=true")


def test_deletion_wants_the_name_and_ends_the_page(view: Watched, topic: str) -> None:
    page = view.open(path_of(topic))
    segment(page, 0).wait_for()
    page.locator("button", has_text="Delete topic").click()
    button = page.locator("dialog button.danger")
    assert button.is_disabled()
    page.keyboard.type(topic)
    button.click()
    page.wait_for_url("**/#/topics")
    assert Rest(view.broker.http_url).call("GET", f"{SCALABLE}/{topic}")[0] == 404


def test_missing_page_and_missing_topic_say_so(view: Watched) -> None:
    page = view.open("nowhere")
    page.locator("text=There is no such page").wait_for()
    view.open("topic/public/default/missing")
    page.locator("text=This topic cannot be shown").wait_for()


def test_every_page_in_both_themes(view: Watched, topic: str) -> None:
    pages = {
        "": "Overview",
        "topics": "Topics",
        "namespaces": "public/default",
        "namespace/public/default": "Policies that are set",
        "brokers": "Settings of this broker",
        "metadata": "Store",
        "operations": "Each broker keeps",
    }
    for scheme in ("light", "dark"):
        view.page.emulate_media(color_scheme=scheme)
        for path, text in pages.items():
            page = view.open(path)
            page.locator("main", has_text=text).wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is too wide"
    background = "getComputedStyle(document.body).backgroundColor"
    dark = view.page.evaluate(background)
    view.page.emulate_media(color_scheme="light")
    assert view.page.evaluate(background) != dark


def test_page_survives_kill_9_of_its_broker(chromium: Any, start_broker: StartBroker) -> None:
    broker = start_broker()
    Rest(broker.http_url).expect("PUT", f"{SCALABLE}/orders?numInitialSegments=2", {})
    context = chromium.new_context()
    context.set_default_timeout(30_000)
    watched = Watched(context.new_page(), broker)
    page = watched.open(path_of("orders"))
    page.locator(".live.live").wait_for()
    broker.kill9()
    page.locator(".timeline.stale").wait_for()
    page.locator("p.lost").wait_for()
    broker.start()
    page.locator(".live.live").wait_for()
    Rest(broker.http_url).expect("POST", f"{SCALABLE}/orders/split/0")
    segment(page, 2).wait_for()
    context.close()
    watched.check()


def test_token_is_asked_for_and_read_only_refuses(chromium: Any, start_broker: StartBroker, tmp_path: Path) -> None:
    words = ["security.methods=token", f"security.token_secret_key={write_secret(tmp_path)}", "http.read_only=true"]
    broker = start_broker(arguments=[part for word in words for part in ("--set", word)])
    context = chromium.new_context()
    context.set_default_timeout(20_000)
    watched = Watched(context.new_page(), broker)
    page = watched.open()
    page.locator("h1", has_text="Sign in").wait_for()
    page.keyboard.type("not a token")
    page.keyboard.press("Enter")
    page.locator("text=does not accept this token").wait_for()
    page.locator("input[type=password]").fill(token_of("viewer", seconds=600))
    page.keyboard.press("Enter")
    page.locator(".sentence").wait_for()
    assert (
        page.evaluate("[document.cookie, localStorage.length && JSON.stringify(localStorage), sessionStorage.length]")[
            2
        ]
        == 0
    )
    assert "eyJ" not in page.evaluate("document.cookie + JSON.stringify(localStorage) + location.href")
    status = page.evaluate("fetch('/admin/v2/tenants/x', {method: 'PUT', body: '{}'}).then(answer => answer.status)")
    assert status in (401, 403)
    context.close()
    watched.check()
