"""The scalable topics of namespaces, for clients that watch them by properties (WATCH_SCALABLE_TOPICS)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from anabranch.controller.interface import ScalableTopics
from anabranch.metadata.interface import Change
from anabranch.model.metadata_keys import scalable_namespace_key, scalable_topic_at


class PropertyFilter:
    """A `Selector`: topics that have all these properties."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._wanted = dict(wanted)
        self.text = json.dumps(self._wanted, sort_keys=True)
        self.cost = 0

    def matches(self, described: Mapping[str, str]) -> bool:
        self.cost += 1 + len(self._wanted)
        return self._wanted.items() <= described.items()


class ScalableTopicSource:
    """A `TopicSource`. Selectors are compared with the properties of topics."""

    def __init__(self, topics: ScalableTopics, namespace: str) -> None:
        self._topics, self._namespace = topics, namespace
        self._properties: dict[str, Mapping[str, str]] = {}
        self.roots = (scalable_namespace_key(namespace),)

    def concerns(self, change: Change) -> bool:
        """Also if the record changed: the topic may have been deleted and created again, with other properties."""
        return scalable_topic_at(change.key) is not None

    async def read(self, keys: list[str], is_all: bool) -> None:
        if is_all:
            self._properties = dict(await self._topics.properties_in(self._namespace))
            return
        for key in keys:
            topic = scalable_topic_at(key)
            assert topic is not None
            found = await self._topics.properties_of(topic)
            if found is None:
                self._properties.pop(str(topic), None)
            else:
                self._properties[str(topic)] = found

    def described(self) -> dict[str, Mapping[str, str]]:
        return dict(self._properties)
