"""The blocking form of `anabranch.admin.topic_policies`. Written by scripts/generate_blocking_admin.py; edit
that module, not this one."""

from __future__ import annotations

from typing import Any

from anabranch.admin.blocking.group import Group
from anabranch.admin.paths import topic_policy_query, topic_policy_setter, topic_policy_url, topic_url


class TopicPolicies(Group):
    """Resolved topic, then namespace, then broker. `is_global`: the part of the topic's policies that holds in all
    clusters; the topic's own part wins. `subscription`: of the dispatch rate of one subscription."""

    def get(
        self,
        topic: str,
        name: str,
        *,
        applied: bool = False,
        is_global: bool = False,
        subscription: str | None = None,
    ) -> Any:
        """What the topic sets; None if nothing. `applied`: the value in force."""
        path = topic_policy_url(topic, name, "GET", subscription)
        return self._value("GET", path, query={"applied": applied, "isGlobal": is_global})

    def set(
        self,
        topic: str,
        name: str,
        value: Any,
        *,
        is_global: bool = False,
        subscription: str | None = None,
        kind: str | None = None,
    ) -> None:
        """`kind`: of a backlog quota (`backlogQuotaMap`), destination_storage or message_age."""
        method, in_query = topic_policy_setter(name), topic_policy_query(name, value)
        query = {"isGlobal": is_global, "backlogQuotaType": kind, **in_query}
        path = topic_policy_url(topic, name, method, subscription)
        self._done(method, path, None if in_query else value, query)

    def remove(
        self,
        topic: str,
        name: str,
        *,
        is_global: bool = False,
        subscription: str | None = None,
        kind: str | None = None,
    ) -> None:
        """Removes one policy of the topic: its namespace's counts again."""
        query = {"isGlobal": is_global, "backlogQuotaType": kind}
        self._done("DELETE", topic_policy_url(topic, name, "DELETE", subscription), query=query)

    def applied(self, topic: str) -> dict[str, Any]:
        """All policies in force: `value`, `level` (topic, topic-global, namespace or broker) and `enforced`."""
        return self._object("GET", topic_url(topic, "policies"))

    def remove_all(self, topic: str) -> None:
        """Removes all policies of the topic."""
        self._done("DELETE", topic_url(topic, "policies"))
