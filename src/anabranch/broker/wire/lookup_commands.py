"""LOOKUP, PARTITIONED_METADATA and GET_TOPICS_OF_NAMESPACE. They change nothing, except for automatic creation."""

from __future__ import annotations

from typing import Any

from anabranch.broker.catalog.topic_lists_state import is_system_topic
from anabranch.broker.errors import TopicMigrated, TopicMigrating, migrated_to
from anabranch.broker.peers import call_others
from anabranch.broker.placement import ServedElsewhere
from anabranch.broker.services import Services
from anabranch.broker.wire.connection import BaseType, CommandSet, Connection, Handler
from anabranch.model.errors import Error, NotAllowed
from anabranch.model.names import Domain, TopicName, parse_namespace
from anabranch.protocol import replies
from anabranch.protocol.commands import BaseCommand
from anabranch.protocol.frames import Frame
from anabranch.protocol.server_errors import server_error
from anabranch.protocol.topics_hash import topics_hash
from anabranch.security.authorization import Resource

TRANSACTION_COORDINATORS = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Clients with transactions look it up first, and learn on TC_CLIENT_CONNECT_REQUEST that there are none."""


class LookupCommands(CommandSet):
    def __init__(self, connection: Connection, services: Services) -> None:
        self._connection = connection
        self._services = services

    def handlers(self) -> dict[BaseType, Handler]:
        return {
            int(BaseCommand.LOOKUP): self._lookup,
            int(BaseCommand.PARTITIONED_METADATA): self._partitions,
            int(BaseCommand.GET_TOPICS_OF_NAMESPACE): self._topics,
        }

    def _lookup(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_lookup(body), "lookup")

    async def _answer_lookup(self, body: Any) -> None:
        try:
            name = TopicName.parse(body.topic)
            await self._connection.authorize(BaseCommand.LOOKUP, Resource.of_topic(name))
            await self._check_regular(name)
        except Error as error:
            self._connection.send(replies.lookup_failed(body.request_id, server_error(error), error.reason))
            return
        await self._services.placement.wait_placed(name)
        address = self._services.placement.owner_address(name)
        try:
            if address is None:
                raise ServedElsewhere(name, None)
            found = address.of_listener(body.advertised_listener_name)
        except Error as error:
            frame = replies.lookup_failed(body.request_id, server_error(error), error.reason)
        else:
            frame = replies.lookup_connect(body.request_id, found.service_url, url_tls=found.service_url_tls)
        self._connection.send(frame)

    async def _check_regular(self, name: TopicName) -> None:
        """A topic that was migrated is found, because Pulsar's V5 client looks up its old name for a layout session. v4
        clients ask for the number of partitions first, which is refused."""
        try:
            await self._services.catalog.check_regular(name)
        except (TopicMigrated, TopicMigrating):
            return

    def _partitions(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_partitions(body), "partitions")

    async def _answer_partitions(self, body: Any) -> None:
        try:
            name = TopicName.parse(body.topic)
            await self._connection.authorize(BaseCommand.PARTITIONED_METADATA, Resource.of_topic(name))
            if name.domain is Domain.SEGMENT:
                if self._services.segments is None:
                    raise NotAllowed(f"{name}: scalable topics are not enabled on this broker")
                await self._services.segments.check_listed(name)
                count = 0
            elif name.base == TRANSACTION_COORDINATORS:
                count = 0
            else:
                count = await self._services.catalog.partitions_or_create(name, body.metadata_auto_creation_enabled)
        except Error as error:
            code, new_name = server_error(error), migrated_to(error)
            frame = replies.partitioned_metadata_failed(body.request_id, code, error.reason, new_name)
            self._connection.send(frame)
            return
        self._connection.send(replies.partitioned_metadata(body.request_id, count))

    def _topics(self, body: Any, frame: Frame) -> None:
        self._connection.start_request(body.request_id, self._answer_topics(body), "topics of namespace")

    async def _answer_topics(self, body: Any) -> None:
        parse_namespace(body.namespace)
        await self._connection.authorize(BaseCommand.GET_TOPICS_OF_NAMESPACE, Resource.of_namespace(body.namespace))
        names: list[str] = []  # none in a namespace that does not exist, as in Pulsar: it may be created later
        if body.mode in (body.PERSISTENT, body.ALL):
            topics = await self._services.catalog.topics(body.namespace)
            names += (str(topic) for topic in topics if not is_system_topic(topic))
            names += await self._partitions_of(body.namespace, "persistent")
        if body.mode in (body.NON_PERSISTENT, body.ALL):
            names += await self._non_persistent(body.namespace)
        found = sorted(set(names))
        digest = topics_hash(found)
        if body.HasField("topics_hash") and body.topics_hash == digest:
            self._connection.send(replies.topics_of_namespace(body.request_id, [], topics_hash=digest, changed=False))
        else:
            self._connection.send(replies.topics_of_namespace(body.request_id, found, topics_hash=digest))

    async def _non_persistent(self, namespace: str) -> list[str]:
        """Non-persistent topics are known only to the broker that has loaded them, so every broker is asked."""
        names, peers = loaded_non_persistent(self._services, namespace), self._services.peers
        if peers is not None:
            asked = {"namespace": namespace}
            for some in await call_others(peers, "admin.non_persistent", asked, absent_ok=True):
                names += some
        return names

    async def _partitions_of(self, namespace: str, domain: str) -> list[str]:
        """Partitions are listed as soon as the partitioned topic exists."""
        catalog = self._services.catalog
        return [
            str(topic.partition(index))
            for topic in await catalog.partitioned_topics(namespace, domain)
            if not is_system_topic(topic)
            for index in range(await catalog.partitions(topic))
        ]


def loaded_non_persistent(services: Services, namespace: str) -> list[str]:
    """Non-persistent topics that this broker has loaded."""
    loaded = (topic.name for topic in services.topics if topic.name.domain is Domain.NON_PERSISTENT)
    return [str(name) for name in loaded if name.namespace_path == namespace]
