"""GET_TOPICS_OF_NAMESPACE and the commands of clients with transactions, on a broker without them."""

from __future__ import annotations

from pathlib import Path

from anabranch.protocol.commands import BaseCommand
from tests.integration.broker.test_schemas import connected


async def test_namespace_that_does_not_exist_has_no_topics(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        answer = await client.ask(BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="no/where")
        assert answer.kind == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
        assert list(answer.body.topics) == []
