"""A guarded cluster: a grant taken away at one broker closes what it opened at another; tokens follow redirects; and
brokers need no token among themselves."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import Refused
from anabranch.node.node import Node
from anabranch.node.settings.security import SecuritySettings
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests.integration.broker.test_security_complete import hello
from tests.support.in_memory.credentials import token_of, write_secret
from tests.support.processes.in_process_cluster import nodes, place_of, topic_at
from tests.support.traffic.raw_client import RawClient

NAMESPACE = "/admin/v2/namespaces/public/default"


def guarded(directory: Path) -> dict[str, Any]:
    key = str(write_secret(directory))
    security = SecuritySettings(methods=("token",), authorization=True, superusers=("root",), token_secret_key=key)
    return {"security": security}


async def admin(node: Node, role: str, method: str, path: str, body: Any = None) -> Any:
    def call() -> Any:
        with AdminClient(node.http_url, token=token_of(role)) as client:
            return client.call(method, path, body).value

    return await asyncio.to_thread(call)


async def test_revocation_at_one_broker_closes_clients_at_the_other(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2", **guarded(tmp_path)) as (one, two), RawClient(two.service_url) as client:
        topic = str(topic_at(two))
        await admin(one, "root", "POST", f"{NAMESPACE}/permissions/app", ["produce", "consume"])
        client.write(hello("app"))
        await client.expect(BaseCommand.CONNECTED)
        assert (await client.producer(topic, 1)).kind == BaseCommand.PRODUCER_SUCCESS
        assert (await client.subscribe(topic, "s", 2)).kind == BaseCommand.SUCCESS
        await admin(one, "root", "POST", f"{NAMESPACE}/permissions/app", ["consume"])
        assert (await client.expect(BaseCommand.CLOSE_PRODUCER)).body.producer_id == 1
        assert (await client.producer(topic, 1)).body.error == ServerError.AuthorizationError
        await admin(one, "root", "DELETE", f"{NAMESPACE}/permissions/app")
        assert (await client.expect(BaseCommand.CLOSE_CONSUMER)).body.consumer_id == 2


async def test_admins_of_a_tenant_are_known_everywhere_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2", **guarded(tmp_path)) as (one, two), RawClient(two.service_url) as client:
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        await admin(one, "root", "PUT", "/admin/v2/tenants/acme", tenant)
        await admin(two, "boss", "PUT", "/admin/v2/namespaces/acme/orders")
        topic = str(topic_at(two, "persistent://acme/orders/t"))
        client.write(hello("boss"))
        await client.expect(BaseCommand.CONNECTED)
        assert (await client.producer(topic, 1)).kind == BaseCommand.PRODUCER_SUCCESS
        await admin(one, "root", "POST", "/admin/v2/tenants/acme", {**tenant, "adminRoles": []})
        assert (await client.expect(BaseCommand.CLOSE_PRODUCER)).body.producer_id == 1


async def test_a_token_and_a_body_follow_the_redirect(tmp_path: Path) -> None:
    async with nodes(tmp_path, "b1", "b2", **guarded(tmp_path)) as (one, two):
        path = f"/admin/v2/{str(topic_at(two)).replace('://', '/')}"
        await admin(one, "root", "PUT", path, {"colour": "blue"})
        assert await admin(one, "root", "GET", f"{path}/properties") == {"colour": "blue"}
        with pytest.raises(Refused) as refused:
            await admin(one, "app", "DELETE", path)
        assert refused.value.status in (401, 403)
        parent = "/admin/v2/persistent/public/default/parent"
        await admin(one, "root", "PUT", f"{parent}/partitions", 4)
        stats = await admin(two, "root", "GET", f"{parent}/partitioned-stats")
        assert len(stats["partitions"]) == 4, "brokers know each other without tokens"


async def test_tokens_give_no_access_to_the_peer_endpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with nodes(tmp_path, "b1", "b2", **guarded(tmp_path)) as (one, two):
        for role in ("root", "app"):
            with pytest.raises(Refused) as refused:
                await admin(two, role, "POST", "/internal/v1/errands/brokers.drain_me", {})
            assert refused.value.status == 403
        with pytest.raises(Refused) as refused:
            await asyncio.to_thread(AdminClient(two.http_url).post, "/internal/v1/errands/brokers.drain_me", {})
        assert refused.value.status == 403
        assert not place_of(two).cluster.info.is_draining
        assert one.services.peers is not None
        await one.services.peers.call("b2", "brokers.owned_here", {})
        stored = await one.services.catalog._store.get("/cluster/secret")  # what only brokers read
        assert stored is not None and stored.value.decode() not in caplog.text
        assert repr(bytes.fromhex(stored.value.decode())) not in caplog.text
