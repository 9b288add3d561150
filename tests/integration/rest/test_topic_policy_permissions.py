"""Permissions of topic policies, over real HTTP at a broker with authorization on: only administrators of the topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch.broker.catalog.topic_policies import TOPIC_POLICIES
from tests.integration.broker.test_security_complete import guarded
from tests.integration.rest.test_autoscale_permissions import NAMESPACE, answers, status
from tests.support.processes.scalable_nodes import admin_of

REGULAR = "/admin/v2/persistent/public/default/plain"


def routes(path: str) -> tuple[tuple[str, str, Any], ...]:
    found: list[tuple[str, str, Any]] = [("GET", f"{path}/policies", None)]
    for policy in TOPIC_POLICIES:
        shown = f"{path}/{policy.path.format(subscription='s')}"
        found.append(("GET", f"{shown}?applied=true", None))
        found.append(("DELETE", f"{path}/{policy.entries_path}" if policy.entries_path else shown, None))
    return (*found, ("POST", f"{path}/maxProducers", 5), ("DELETE", f"{path}/policies", None))


async def test_only_administrators_see_and_change_policies_of_topics(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        await admin_of(node).create("topic://public/default/scaled", 2, {})
        assert await status(node, "root", "PUT", REGULAR, None) == 204
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert await status(node, "root", "POST", "/admin/v2/tenants/public", tenant) == 204
        assert await status(node, "root", "POST", f"{NAMESPACE}/permissions/reader", ["consume", "produce"]) == 204
        for path in (REGULAR, "/admin/v2/topic/public/default/scaled"):
            for role in ("guest", "reader"):
                assert await answers(node, role, routes(path)) == {403}, (role, path)
            assert await answers(node, None, routes(path)) == {401}, path
            for role in ("boss", "root"):
                assert await answers(node, role, routes(path)) == {200, 204}, (role, path)
