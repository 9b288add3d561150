"""Messages, cursors, favourites and rights in the console, on real brokers."""

from __future__ import annotations

import io
import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import pulsar
import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import StartBroker
from tests.e2e.console.conftest import NAMESPACE, Watched, button, confirm
from tests.support.in_memory.credentials import token_of, write_secret
from tests.support.traffic.stock_calls import Rest

SCALABLE, REGULAR = f"/admin/v2/scalable/{NAMESPACE}", f"/admin/v2/persistent/{NAMESPACE}"
WAIT_MS = 20_000
pytestmark = pytest.mark.slow


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "by", "type": {"type": "map", "values": "double"}},
        {"name": "sum", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "ok", "type": "boolean"},
    ],
}


def test_avro_is_decoded_exactly_and_refused_when_it_does_not_fit(view: Watched) -> None:
    record = {"id": -(2**63), "note": "\u00e9<b>", "kind": "B", "again": "A", "tags": ["x", "y"], "by": {"k": 0.5}}
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(AVRO))).write(
        {**record, "sum": b"\x01\xff", "raw": b"\x00", "ok": True}, avro.io.BinaryEncoder(out)
    )
    data = out.getvalue()
    decode = """([schema, data]) => import('/console/avro.js').then(({decoded}) => {
        try { return decoded(schema, new Uint8Array(data)); } catch (error) { return `! ${error.message}`; } })"""
    page = view.open("nowhere")
    text = page.evaluate(decode, [json.dumps(AVRO), list(data)])
    assert json.loads(text) == {**record, "sum": "0x01ff", "raw": "0x00", "ok": True}
    for broken in (data[:-1], data + b"\0", b"", b"\xff" * 40):
        assert page.evaluate(decode, [json.dumps(AVRO), list(broken)]).startswith("! "), broken
    deep = {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}
    assert "too deeply" in page.evaluate(decode, [json.dumps(deep), []])


def test_messages_are_read_from_the_beginning_and_sent_to_a_scalable_topic(
    view: Watched, rest: Rest, name: str
) -> None:
    rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    path = f"/anabranch/v1/scalable/{NAMESPACE}/{name}/messages"
    rest.expect("POST", path, {"messages": [{"payload": f"m{n}", "key": f"k{n}"} for n in range(70)]})
    page = view.open(f"topic/{NAMESPACE}/{name}?messages=1&look=start")
    page.locator(".messages .hint", has_text="50 of 50 read").wait_for()
    button(page, "Read on").click()
    page.locator(".messages .hint", has_text="70 of 70 read").wait_for()
    page.locator("text=This is the end").wait_for()
    button(page, "Write one").click()
    form = page.locator("form.form")
    form.get_by_label("payload").fill("y" * 9_000)
    button(page, "Send").click()
    page.locator(".notice", has_text="of segment").wait_for()
    page.locator(".messages .hint", has_text="71 of 71 read").wait_for()  # the end goes on by itself
    page.locator(".preview", has_text="yyyy").click()
    button(page, "Show all of it").click()
    expect(page.locator(".detail pre")).to_have_text("y" * 9_000, timeout=WAIT_MS)
    first = rest.expect("GET", f"{path}/page?count=1&segment=1")["messages"][0]
    page.get_by_label("look", exact=False).select_option("place")
    page.get_by_label("segment", exact=True).fill("1")
    page.get_by_label("position", exact=True).fill(first["id"])
    page.get_by_label("position", exact=True).press("Enter")
    page.locator(".preview", has_text=first["payload"]).first.wait_for()
    assert "look=place" in page.url and f"at={urllib.parse.quote(first['id'], safe='')}" in page.url


def test_dead_letters_go_back_to_their_topic(view: Watched, rest: Rest, stock: pulsar.Client, name: str) -> None:
    full = f"persistent://{NAMESPACE}/{name}"
    rest.expect("PUT", f"{REGULAR}/{name}")
    rest.expect("PUT", f"{REGULAR}/{name}-DLQ")
    consumer = stock.subscribe(full, "s")
    origin = {"REAL_TOPIC": full, "ORIGIN_MESSAGE_ID": "1:2", "a": "b"}
    messages = [{"payload": "small", "key": "k", "properties": origin}]
    messages += [{"payload": "z" * 6_000, "properties": origin}, {"payload": "other"}]
    rest.expect("POST", f"/topics/persistent/{NAMESPACE}/{name}-DLQ", {"messages": messages})
    page = view.open(f"regular/regular/{NAMESPACE}/{name}-DLQ?messages=1")
    button(page, "Send 2 dead letters back …").click()
    assert f"2 messages to {full}" in page.locator("dialog").inner_text()
    confirm(page)
    page.locator(".notice", has_text="2 sent back").wait_for()
    got = [consumer.receive(timeout_millis=10_000) for _ in range(2)]
    assert sorted((one.data(), one.partition_key(), str(one.properties())) for one in got) == [
        (b"small", "k", "{'a': 'b'}"),
        (b"z" * 6_000, "", "{'a': 'b'}"),
    ]


def test_cursor_is_moved_with_its_consequence_in_numbers(
    view: Watched, rest: Rest, stock: pulsar.Client, name: str
) -> None:
    full = f"persistent://{NAMESPACE}/{name}"
    consumer = stock.subscribe(full, "billing")
    rest.expect("POST", f"/topics/persistent/{NAMESPACE}/{name}", {"messages": [{"payload": str(n)} for n in range(8)]})
    for _ in range(5):
        consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    consumer.close()
    page = view.open(f"regular/regular/{NAMESPACE}/{name}?ledgers=1")
    page.locator("section[aria-label=ledgers] td", has_text="billing").wait_for()
    part = page.locator("section[aria-label='move cursor']")
    page.locator("td", has_text=re.compile("^3$")).first.wait_for()
    button(page, "Move …").click()
    part.get_by_label("where").select_option("start")
    button(part, "Preview …").click()
    assert "About 5 of them are delivered to it again" in page.locator("dialog").inner_text()
    confirm(page)
    page.locator("td", has_text=re.compile("^8$")).first.wait_for()
    part.get_by_label("where").select_option("skip")
    part.get_by_label("entries", exact=True).fill("2")
    button(part, "Preview …").click()
    confirm(page, "billing")
    page.locator("td", has_text=re.compile("^6$")).first.wait_for()
    part.get_by_label("where").select_option("expire")
    part.get_by_label("time", exact=True).fill("2199-01-01T00:00:00")
    button(part, "Preview …").click()
    assert "8 messages before 2199" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    button(page, "Delete …").click()
    confirm(page, "billing")
    page.locator("p.hint", has_text="None.").first.wait_for()


def test_favourites_are_kept_and_filter_the_list(view: Watched, rest: Rest, name: str) -> None:
    rest.expect("PUT", f"{SCALABLE}/{name}", {})
    page = view.open(f"topics?q={name}")
    star = page.get_by_role("button", name=f"favourite {name}")
    star.click()
    page.reload()
    expect(star).to_have_attribute("aria-pressed", "true", timeout=WAIT_MS)
    view.open("topics?fav=1")
    expect(page.locator(".rows tbody tr")).to_have_count(1, timeout=WAIT_MS)
    star.click()
    expect(page.locator(".rows tbody tr")).to_have_count(0, timeout=WAIT_MS)


def test_what_a_role_may_not_do_is_off_and_says_why(chromium: Any, start_broker: StartBroker, tmp_path: Path) -> None:
    settings = {
        "security.methods": "token",
        "security.authorization": "true",
        "security.superusers": "root",
        "security.token_secret_key": str(write_secret(tmp_path)),
    }
    broker = start_broker(arguments=[part for pair in settings.items() for part in ("--set", "=".join(pair))])
    root = Rest(broker.http_url, token_of("root"))
    root.expect("PUT", f"{SCALABLE}/orders?numInitialSegments=2", {})
    root.expect("PUT", f"{SCALABLE}/orders/subscriptions/audit")
    root.expect("POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/viewer", ["consume"])
    context = chromium.new_context()
    context.set_default_timeout(20_000)
    watched = Watched(context.new_page(), broker)
    page = watched.open(f"topic/{NAMESPACE}/orders")
    page.locator("input[type=password]").fill(token_of("viewer", seconds=600))
    page.keyboard.press("Enter")
    note = page.locator(".refused", has_text="split, merge, delete the topic")
    note.wait_for()
    assert "viewer" in note.inner_text() and "send" in note.inner_text() and "read messages" not in note.inner_text()
    page.locator(".hit").first.click()
    split = page.locator("button", has_text="Split …")
    assert split.is_disabled() and "viewer" in (split.get_attribute("title") or "")
    assert button(page, "Delete topic …").is_disabled() and page.locator("text=Write one").count() == 0
    assert button(page, "Show them").is_enabled() and button(page, "Skip all …").is_enabled()
    root.expect("DELETE", f"/admin/v2/namespaces/{NAMESPACE}/permissions/viewer")
    page.locator(".live.ended").wait_for()  # the stream of a revoked role ends
    context.close()
    watched.check()
