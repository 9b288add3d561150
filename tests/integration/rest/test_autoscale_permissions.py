"""Permissions of the routes of auto-scaling, over real HTTP at a broker with authorization on."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from anabranch.node.node import Node
from tests.integration.broker.test_security_complete import guarded
from tests.support.in_memory.credentials import token_of
from tests.support.processes.scalable_nodes import admin_of

SCALABLE = "/admin/v2/scalable/public/default/orders"
NAMESPACE = "/admin/v2/namespaces/public/default"
POLICY: dict[str, Any] = {"maxSegments": 8}

LOOKUP = (
    ("GET", f"{SCALABLE}/autoScalePolicy?applied=true", None),
    ("GET", f"{SCALABLE}/autoscale", None),
    ("GET", f"{SCALABLE}/autoscaler-metric", None),
)
TOPIC_ADMIN = (
    ("POST", f"{SCALABLE}/autoScalePolicy", POLICY),
    ("DELETE", f"{SCALABLE}/autoScalePolicy", None),
    ("POST", f"{SCALABLE}/autoscale/try", POLICY),
)
NAMESPACE_ADMIN = (
    ("GET", f"{NAMESPACE}/scalableTopicAutoScalePolicy?applied=true", None),
    ("POST", f"{NAMESPACE}/scalableTopicAutoScalePolicy", POLICY),
    ("DELETE", f"{NAMESPACE}/scalableTopicAutoScalePolicy", None),
)


async def status(node: Node, role: str | None, method: str, path: str, body: Any) -> int:
    headers = {"Content-Type": "application/json"}
    if role is not None:
        headers["Authorization"] = f"Bearer {token_of(role)}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{node.http_url}{path}", data, headers, method=method)

    def fetch() -> int:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    return await asyncio.to_thread(fetch)


async def answers(node: Node, role: str | None, routes: tuple[tuple[str, str, Any], ...]) -> set[int]:
    return {await status(node, role, *route) for route in routes}


async def test_each_route_answers_only_roles_with_its_permission(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        await admin_of(node).create("topic://public/default/orders", 2, {})
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert await status(node, "root", "POST", "/admin/v2/tenants/public", tenant) == 204
        assert await status(node, "root", "POST", f"{NAMESPACE}/permissions/reader", ["consume"]) == 204
        for routes, allowed in (
            (LOOKUP, {"reader": {200}, "boss": {200}, "root": {200}}),
            (TOPIC_ADMIN, {"boss": {200, 204}, "root": {200, 204}}),
            (NAMESPACE_ADMIN, {"boss": {200, 204}, "root": {200, 204}}),
        ):
            for role in ("guest", "reader", "boss", "root"):
                assert await answers(node, role, routes) == allowed.get(role, {403}), (role, routes)
            assert await answers(node, None, routes) == {401}, routes
