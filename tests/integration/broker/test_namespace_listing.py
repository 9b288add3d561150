"""GET_TOPICS_OF_NAMESPACE and the commands of clients with transactions, on a broker without them."""

from __future__ import annotations

from pathlib import Path

from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.server_errors import ServerError
from tests.integration.broker.test_schemas import connected


async def test_namespace_that_does_not_exist_has_no_topics(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        answer = await client.ask(BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="no/where")
        assert answer.kind == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
        assert list(answer.body.topics) == []


async def test_transactions_are_refused_after_lookup(tmp_path: Path) -> None:
    topic = "persistent://pulsar/system/transaction_coordinator_assign"
    async with connected(tmp_path) as (_, client):
        for name in (topic, f"{topic}-partition-0"):
            found = (await client.ask(BaseCommand.PARTITIONED_METADATA, topic=name)).body
            assert (found.partitions, found.HasField("error")) == (0, False)
            assert not (await client.ask(BaseCommand.LOOKUP, topic=name)).body.HasField("error")
        refused = await client.ask(BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        assert (refused.kind, refused.body.error) == (BaseCommand.ERROR, ServerError.NotAllowedError)
        assert refused.body.message == "Transactions are not enabled."
