"""Clients of regular topics, which a partition that a migration has adopted refuses."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.errors import TopicMigrated, TopicMigrating
from anabranch.model.names import Domain, TopicName
from anabranch.protocol.managed_clients import is_managed


def check_follows(name: TopicName, metadata: Mapping[str, str], *, is_sealed: bool) -> None:
    """Raises TopicMigrated, TopicMigrating for clients that do not know that the topic is a segment."""
    if name.domain is not Domain.PERSISTENT or is_managed(metadata):
        return
    if is_sealed:
        raise TopicMigrated(name.base)
    raise TopicMigrating(f"{name.base} is being migrated to {name.scalable}; try again")
