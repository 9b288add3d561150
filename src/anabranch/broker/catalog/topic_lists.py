"""The persistent topics of namespaces, for clients that watch them by pattern (WATCH_TOPIC_LIST)."""

from __future__ import annotations

from anabranch.broker.catalog.catalog import Catalog
from anabranch.broker.catalog.topic_lists_state import NamespaceTopics
from anabranch.metadata.interface import Change, ChangeKind
from anabranch.model.errors import BadName
from anabranch.model.metadata_keys import PARTITIONED_TOPICS
from anabranch.model.names import TopicName, parse_namespace


class PersistentTopics:
    """A `TopicSource`. Selectors are compared with names without domain and partition."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog, self._namespace = catalog, namespace
        self._topics = NamespaceTopics()
        self.roots = (catalog.topics_key(namespace), f"{PARTITIONED_TOPICS}/{namespace}")

    def concerns(self, change: Change) -> bool:
        if (topic := self._topic_at(change.key)) is None:
            return False  # the root, or a cursor
        is_record = change.key.startswith(f"{self.roots[0]}/")
        # A record changes with every new ledger.
        return not (is_record and change.kind is ChangeKind.MODIFIED and self._topics.has_record(topic))

    def _topic_at(self, key: str) -> TopicName | None:
        for root in self.roots:
            if key.startswith(f"{root}/") and "/" not in (local := key.removeprefix(f"{root}/")):
                try:
                    return TopicName.from_rest("persistent", *parse_namespace(self._namespace), local)
                except BadName:
                    return None
        return None

    async def read(self, keys: list[str], is_all: bool) -> None:
        catalog, topics = self._catalog, self._topics
        if is_all:
            recorded = await catalog.topics(self._namespace)
            partitioned = await catalog.partitioned_topics(self._namespace, "persistent")
            topics.replace(recorded, {topic: await catalog.partitions(topic) for topic in partitioned})
        for key in keys:
            if (topic := self._topic_at(key)) is None:
                continue
            if key.startswith(f"{self.roots[0]}/"):
                topics.note_record(topic, exists=await catalog.exists(topic))
            else:
                topics.note_partitions(topic, await catalog.partitions(topic))

    def described(self) -> dict[str, str]:
        return self._topics.texts()
