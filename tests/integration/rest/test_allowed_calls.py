"""The calls that `/access` allows a role are those that it may make: route by route, over HTTP at a guarded broker."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.node.node import Node
from anabranch.rest.settings import HttpSettings
from tests.integration.broker.test_security_complete import guarded
from tests.support.in_memory.credentials import token_of
from tests.support.processes.scalable_nodes import admin_of

SCALABLE, NAMESPACE = "/admin/v2/scalable/public/default/orders", "/admin/v2/namespaces/public/default"
BROWSE = "/anabranch/v1/scalable/public/default/orders"
CALLS = (
    ("GET", f"{SCALABLE}/stats"),
    ("GET", f"{BROWSE}/messages?count=1"),
    ("GET", "/admin/v2/tenants"),
    ("GET", f"{NAMESPACE}/permissions"),
    ("GET", "/admin/v2/brokers/configuration/runtime"),
    ("POST", f"{SCALABLE}/split/99"),
    ("POST", f"{BROWSE}/messages"),
    ("POST", f"{NAMESPACE}/permissions/x"),
    ("PUT", "/admin/v2/tenants/other"),
)


async def call(node: Node, role: str | None, method: str, path: str) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    if role is not None:
        headers["Authorization"] = f"Bearer {token_of(role)}"
    request = urllib.request.Request(f"{node.http_url}{path}", None, headers, method=method)

    def fetch() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    status, body = await asyncio.to_thread(fetch)
    return status, json.loads(body) if body else None


async def allowed(node: Node, role: str | None, *calls: tuple[str, str]) -> tuple[int, Any]:
    asked = urllib.parse.urlencode([("call", " ".join(one)) for one in calls])
    return await call(node, role, "GET", f"/anabranch/v1/access?{asked}")


async def test_what_is_said_is_what_each_route_does(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        await admin_of(node).create("topic://public/default/orders", 2, {})
        await grant(node, "reader", "consume")
        for role in ("guest", "reader", "root"):
            status, told = await allowed(node, role, *CALLS)
            assert status == 200 and told["role"] == role and told["readOnly"] is False
            for one, said in zip(CALLS, told["calls"], strict=True):
                refused = (await call(node, role, *one))[0] == 403
                assert said["allowed"] is not refused and bool(said["reason"]) is refused, (role, one, said)
        assert (await allowed(node, None, *CALLS))[0] == 401
        for bad in (("GET", "/nothing"), ("POST", SCALABLE), ("", ""), ("GET", "x")):
            assert (await allowed(node, "root", bad))[0] == 400, bad
        assert (await allowed(node, "root", *[CALLS[0]] * 65))[0] == 400
        assert (await allowed(node, "root"))[1]["calls"] == []


async def grant(node: Node, role: str, action: str) -> None:
    headers = {"Authorization": f"Bearer {token_of('root')}", "Content-Type": "application/json"}
    path = f"{node.http_url}{NAMESPACE}/permissions/{role}"
    request = urllib.request.Request(path, json.dumps([action]).encode(), headers, method="POST")
    with await asyncio.to_thread(urllib.request.urlopen, request, None, 30) as answer:
        assert answer.status == 204


async def test_read_only_port_says_so_and_a_broker_without_security_allows_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with guarded(tmp_path / "a", http=HttpSettings(port=0, read_only=True)) as node:
        told = (await allowed(node, "root", *CALLS))[1]
        assert told["readOnly"] and [one["allowed"] for one in told["calls"]] == [m == "GET" for m, _ in CALLS]
        assert "http.read_only" in told["calls"][-1]["reason"]
    async with Node(replace(node.settings, security=type(node.settings.security)(), http=HttpSettings(port=0))) as node:
        told = (await allowed(node, None, *CALLS))[1]
        assert told["role"] is None and all(one["allowed"] for one in told["calls"])
