"""The description at /openapi.json: it covers all routes, and every call that it allows is answered without a 500."""

from __future__ import annotations

import json
import random
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest

from anabranch.rest.openapi.document import BODIES, QUERY
from anabranch.rest.openapi.result_schemas import RESULTS
from tests.support.processes.broker_process import BrokerProcess

CALLS = 600
WILD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    1.5,
    10**30,
    "",
    "x",
    "earliest",
    "é\u0000",
    [],
    ["x", 1],
    {},
    {"a": None},
)


def fetch(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes, str]:
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            kind = answer.headers.get("Content-Type") or ""
            has_end = not kind.startswith("text/event-stream")
            return answer.status, answer.read() if has_end else b"", kind
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers.get("Content-Type") or ""


@pytest.fixture(scope="module")
def document(broker: BrokerProcess) -> Any:
    return json.loads(fetch(f"{broker.http_url}/openapi.json")[1])


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [(path, verb, one) for path, verbs in document["paths"].items() for verb, one in verbs.items()]


def test_document_is_complete(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    found = operations(document)
    assert len(found) > 150
    ids = [one["operationId"] for _, _, one in found]
    assert len(set(ids)) == len(ids)
    for path, _, one in found:
        named = re.findall(r"\{(\w+)\}", path)
        assert [given["name"] for given in one["parameters"] if given["in"] == "path"] == named
        assert one["summary"] and one["tags"]
    policy = "/admin/v2/namespaces/{tenant}/{namespace}/retention"
    assert {"/admin/v2/clusters", "/metrics", "/openapi.json", policy} <= set(document["paths"])


def test_tables_of_the_document_name_routes(document: Any) -> None:
    paths = [(verb.upper(), path) for path, verb, _ in operations(document)]
    for verb, end in (*QUERY, *BODIES, *RESULTS):
        assert any(method == verb and path.endswith(end) for method, path in paths), (verb, end)


def test_page_has_no_external_resources(broker: BrokerProcess) -> None:
    status, page, kind = fetch(f"{broker.http_url}/docs")
    assert status == 200 and kind.startswith("text/html")
    own = [name.decode() for name in re.findall(rb'(?:src|href)="(/console/[^"]+)"', page)]
    assert {name.rpartition(".")[2] for name in own} == {"css", "js"}
    whole = page + b"".join(fetch(broker.http_url + name)[1] for name in own)
    assert b"/openapi.json" in whole and b"http://" not in whole and b"https://" not in whole


def test_mutated_requests_get_clear_answers(document: Any, start_broker: Any) -> None:
    """A walk over all operations with sensible and senseless values: no fault of ours, reasons with every refusal."""
    broker = start_broker()
    dice = random.Random(4)
    found = operations(document)
    texts = ["public", "default", "t", "s", "x-partition-0", "é", "bad!", "a%2Fb", "..", "0x00000000_0x40000000", "-1"]
    for round_ in range(CALLS):
        path, verb, one = found[round_ % len(found)] if round_ < len(found) else dice.choice(found)
        for given in one["parameters"]:
            if given["in"] == "path":
                known = {"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s"}
                value = known.get(given["name"], "1") if dice.random() < 0.7 else dice.choice(texts)
                if given["schema"].get("enum"):
                    value = dice.choice(given["schema"]["enum"])
                path = path.replace(f"{{{given['name']}}}", urllib.parse.quote(value, safe="%"))
        query = {
            given["name"]: dice.choice(["true", "false", "1", "zzz", ""])
            for given in one["parameters"]
            if given["in"] == "query" and dice.random() < 0.5
        }
        url = broker.http_url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        wild = dice.choice([json.dumps(dice.choice(WILD)).encode(), b"{", b"\xff", b""])
        body = None if verb == "get" else wild
        status, content, _ = fetch(url, verb.upper(), body)
        assert status < 500, f"{verb} {url} {body!r} answered {status}: {content!r}"
        if status >= 400:
            answer = json.loads(content)
            assert set(answer) == {"reason", "error"} and "Traceback" not in answer["reason"], f"{verb} {url}: {answer}"
    assert broker.log_complaints() == []
