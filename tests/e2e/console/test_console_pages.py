"""Pages and parts of the console that are loaded when they are shown: their actions, on real brokers."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pulsar
import pytest
from playwright.sync_api import expect

import anabranch.blocking
from tests.e2e.conftest import StartBroker
from tests.e2e.console.conftest import NAMESPACE, Watched, button, confirm
from tests.support.traffic.stock_calls import Rest

SCALABLE, REGULAR = f"/admin/v2/scalable/{NAMESPACE}", f"/admin/v2/persistent/{NAMESPACE}"
WAIT_MS = 20_000
BIDI, SHOWN = "b\u202edi", "b\\u202edi"
pytestmark = pytest.mark.slow


def test_sessions_of_a_subscription_and_what_waits(view: Watched, rest: Rest, name: str) -> None:
    rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    rest.expect("POST", f"{SCALABLE}/{name}/autoScalePolicy", {"enabled": False})  # else it splits for the third reader
    full = f"topic://{NAMESPACE}/{name}"
    with anabranch.blocking.connect(view.broker.service_url) as client:
        readers = [
            client.stream_consumer(full, subscription="audit", name=one, start="earliest") for one in (BIDI, "b", "c")
        ]  # more than segments, so that one of the children goes to another consumer than its parent
        with client.producer(full) as producer:
            for number in range(40):
                producer.send(b"x", key=f"k{number}")
        rest.expect("POST", f"{SCALABLE}/{name}/split/0")
        page = view.open(f"topic/{NAMESPACE}/{name}")
        button(page, "Consumers").click()
        part = page.locator("section[aria-label=consumers]")
        part.locator("tr", has_text=SHOWN).first.wait_for()
        part.locator("td", has_text="segment 0 to be acknowledged").first.wait_for()
        sessions = part.locator("tbody").first
        for text in ("connected", "23", "17"):  # of 40 messages
            expect(sessions).to_contain_text(text, timeout=WAIT_MS)
        for one in readers:
            one.close()
        part.locator("tr", has_text="nobody").wait_for()
    assert "consumers=audit" in page.url
    button(part, "Hide").click()
    part.wait_for(state="detached")


def test_shares_of_sessions_are_exact(view: Watched) -> None:
    """Pure: grace, segments without a session, drained ones, owners that did not answer."""
    at = {"position": None, "backlog": 0, "drained": False, "consumer": None, "consumers": 0}
    found = {
        "sessions": [
            {"name": "a", "connected": True, "segments": [1, 2]},
            {"name": "b", "connected": False, "segments": []},
        ],
        "waiting": {"2": [0]},
        "segments": {
            "0": {**at, "drained": True},
            "1": {**at, "backlog": 5},
            "2": {**at, "backlog": None},
            "3": {**at, "backlog": 7},
        },
    }
    page = view.open("nowhere")
    rows = page.evaluate("found => import('/console/consumers.js').then(module => module.shares(found))", found)
    assert [(one["name"], one["ids"], one["backlog"], one["waiting"]) for one in rows] == [
        ("a", [1, 2], 5, [2]),
        ("b", [], 0, []),
        (None, [3], 7, []),
    ]


def test_shown_commands_give_a_shell_the_exact_name(view: Watched) -> None:
    names = ["orders/a-1", "two words", "it's $HOME `id` \\n", f"{BIDI}'\\\x1b[2J\x7f\n$HOME", "-", "\u00e4\u00f6"]
    words = view.open("nowhere").evaluate(
        "names => import('/console/format.js').then(module => names.map(module.quoted))", names
    )
    for text, word in zip(names, words, strict=True):
        assert word.isprintable(), "pasted into a terminal it controls nothing"
        command = ["bash", "-c", f"printf '%s' {word}"]
        done = subprocess.run(command, capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True)
        assert done.stdout == text.encode()


def test_regular_topic_shows_consumers_sends_and_sends_again(
    view: Watched, rest: Rest, stock: pulsar.Client, name: str
) -> None:
    rest.expect("PUT", f"{REGULAR}/{name}")
    consumer = stock.subscribe(f"persistent://{NAMESPACE}/{name}", "billing", consumer_name="b-1")
    page = view.open(f"regular/regular/{NAMESPACE}/{name}?messages=1")
    button(page, "Consumers").click()
    row = page.locator("section[aria-label=consumers] tr", has_text="b-1")
    row.wait_for()
    assert "127.0.0.1:" in row.inner_text() and "Pulsar" in row.inner_text()
    button(page, "Write one").click()
    form = page.locator("form.form")
    form.get_by_label("payload").fill('{"n": 12345678901234567890}')
    form.get_by_label("key").fill("k1")
    form.get_by_label("properties").fill("no value")
    button(page, "Send").click()
    form.locator(".failure", has_text="name=value").wait_for()
    form.get_by_label("properties").fill("trace=a=b")
    button(page, "Send").click()
    page.locator(".notice", has_text="Stored as").wait_for()
    page.locator(".preview").first.click()
    detail = page.locator("tr.detail")
    assert "ledger" in detail.inner_text() and "27 bytes" in detail.inner_text()
    button(page, "Show bytes").click()
    assert detail.locator("pre").inner_text().startswith("0000  7b 22 6e")
    button(page, "Send it again …").click()
    expect(form.get_by_label("payload")).to_be_focused(timeout=WAIT_MS)
    button(page, "Send").click()
    page.locator(".messages .hint", has_text="newest 2;").wait_for()
    for _ in range(2):
        got = consumer.receive(timeout_millis=10_000)
        assert (got.data(), got.partition_key(), got.properties()) == (
            b'{"n": 12345678901234567890}',
            "k1",
            {"trace": "a=b"},
        )


def test_migration_of_a_topic_waits_for_its_clients(view: Watched, rest: Rest, stock: pulsar.Client, name: str) -> None:
    full = f"persistent://{NAMESPACE}/{name}"
    consumer = stock.subscribe(full, "billing", consumer_name="b-1")
    page = view.open(f"regular/regular/{NAMESPACE}/{name}")
    button(page, "Check").click()
    page.locator(".checklist .bad", has_text="v4-clients").wait_for()
    assert "b-1" in page.locator("section[aria-label=migration] table").first.inner_text()
    assert button(page, "Migrate …").is_disabled()
    page.locator("select").select_option("STREAM")
    consumer.close()
    page.locator(".checklist .ok", has_text="Nothing blocks it").wait_for()
    button(page, "Migrate …").click()
    assert "There is no way back" in page.locator("dialog").inner_text()
    confirm(page, name)
    page.locator(".kind", has_text="scalable").wait_for()
    assert rest.expect("GET", f"{SCALABLE}/{name}/subscriptions/billing")["type"] == "STREAM"


def test_policy_is_tried_before_it_is_set(view: Watched, rest: Rest, name: str) -> None:
    rest.expect("PUT", f"{SCALABLE}/{name}?numInitialSegments=2", {})
    rest.expect("POST", f"{SCALABLE}/{name}/autoScalePolicy", {"mergeCooldownSeconds": 77})
    page = view.open(f"topic/{NAMESPACE}/{name}")
    button(page, "Try a policy").click()
    fields = page.locator(".fields")
    fields.get_by_label("max segments").fill("1")
    fields.get_by_label("min segments").fill("5")
    button(page, "Try").click()
    page.locator(".failure", has_text="bad-policy").wait_for()
    fields.get_by_label("max segments").fill("9")
    fields.get_by_label("enabled").uncheck()
    button(page, "Try").click()
    page.locator(".verdict", has_text="It would do now").wait_for()
    assert rest.expect("GET", f"{SCALABLE}/{name}/autoScalePolicy") == {"mergeCooldownSeconds": 77}
    button(page, "Set 3 values for this topic …").click()
    assert "max segments: 64 → 9" in page.locator("dialog").inner_text()
    confirm(page)
    page.locator(".notice", has_text="The policy is set").wait_for()
    wanted = {"mergeCooldownSeconds": 77, "maxSegments": 9, "minSegments": 5, "enabled": False}
    assert rest.expect("GET", f"{SCALABLE}/{name}/autoScalePolicy") == wanted


def test_schemas_are_checked_added_and_deleted(view: Watched, rest: Rest, name: str) -> None:
    def order(**fields: Any) -> str:
        typed = [{"name": key, **value} for key, value in fields.items()]
        return json.dumps({"type": "record", "name": "Order", "fields": typed})

    topic = urllib.parse.quote(f"{name}{BIDI}", safe="")
    rest.expect("PUT", f"{REGULAR}/{topic}")
    page = view.open(f"schemas/regular/{NAMESPACE}/{topic}")
    page.locator("h2", has_text="No schema yet").wait_for()
    add, text = button(page, "Add …"), page.get_by_label("definition")
    assert add.is_disabled(), "it is checked first"
    first = order(id={"type": "long"}, note={"type": "string", "doc": f"<b>{BIDI}</b>"})
    for definition, expected in ((first, None), (order(id={"type": "int"}), "would be refused")):
        text.fill(definition)
        button(page, "Check").click()
        if expected is None:
            page.locator(".good", has_text="would be accepted").wait_for()
            add.click()
            confirm(page)
            page.locator("summary", has_text="version 0 · AVRO").wait_for()
        else:
            page.locator(".failure", has_text=expected).wait_for()
            assert add.is_disabled()
    assert (
        SHOWN in page.locator("h1").inner_text()
        and SHOWN in page.locator("pre").inner_text()
        and page.locator("main b").count() == 0
    )
    button(page, "Delete all versions …").click()
    confirm(page, f"{name}{SHOWN}")  # as it is shown: nobody can type the name itself
    page.locator("h2", has_text="No schema yet").wait_for()
    path = f"/admin/v2/schemas/{NAMESPACE}/{topic}/schemas"
    assert rest.expect("GET", path) == {"getSchemaResponses": []}


def test_permissions_are_granted_changed_and_revoked(view: Watched, rest: Rest, name: str) -> None:
    namespace = f"public/{name}"
    rest.create_namespace(namespace)
    page, path = view.open(f"namespace/{namespace}"), f"/admin/v2/namespaces/{namespace}/permissions"
    page.get_by_label("role").fill("al/ice")
    page.get_by_label("produce").check()
    button(page, "Grant …").click()
    assert "may produce and consume" in page.locator("dialog").inner_text()
    confirm(page)
    row = page.locator("section", has=page.locator("h2", has_text="Permissions")).locator("tr", has_text="al/ice")
    row.wait_for()
    assert {key: sorted(found) for key, found in rest.expect("GET", path).items()} == {"al/ice": ["consume", "produce"]}
    button(row, "Change").click()
    page.get_by_label("produce").uncheck()
    button(page, "Grant …").click()
    assert "takes the place" in page.locator("dialog").inner_text()
    confirm(page)
    expect(row.locator("td").nth(1)).to_have_text("consume", timeout=WAIT_MS)
    assert rest.expect("GET", path) == {"al/ice": ["consume"]}
    button(row, "Revoke …").click()
    confirm(page, "al/ice")
    row.wait_for(state="detached")
    assert rest.expect("GET", path) == {}


def test_metadata_moves_to_another_store_and_an_attempt_is_aborted(
    chromium: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker, target = start_broker(), f"sqlite:///{tmp_path}/other"
    Rest(broker.http_url).create_partitioned(f"persistent://{NAMESPACE}/many", 60)  # a record each: a copy of a minute
    context = chromium.new_context()
    context.set_default_timeout(20_000)
    watched = Watched(context.new_page(), broker)
    page = watched.open("metadata")
    for rate in ("1", ""):
        page.get_by_label("URL of the new store").fill(target)
        page.get_by_label("records per second").fill(rate)
        if not rate:
            page.get_by_label("delete what an earlier").check()
        button(page, "Start …").click()
        assert "all brokers switch together" in page.locator("dialog").inner_text()
        confirm(page, target)
        if rate:
            page.locator("li[aria-current=step]", has_text="copy while writes go on").wait_for()
            watched.open("").locator(".attention", has_text="being moved").wait_for()
            watched.open("metadata")
            button(page, "Abort …").click()
            confirm(page, "abort")
            page.locator(".failure", has_text="the store in use is unchanged").wait_for()
            assert Rest(broker.http_url).expect("GET", "/admin/v2/metadata/migration/status")["phase"] == "FAILED"
            page.get_by_label("URL of the new store").wait_for()
    page.locator(".command", has_text=f'url = "{target}"').wait_for()
    button(page, "Compare both stores").click()
    page.locator("p[role=status]", has_text="records in the source").wait_for()
    watched.open("").locator(".sentence").wait_for()
    assert page.locator(".attention", has_text="being moved").count() == 0
    context.close()
    watched.check()
