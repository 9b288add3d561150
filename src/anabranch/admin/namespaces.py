"""Namespaces: their policies, bundles and permissions.

A policy has the name that REST gives it (`paths.POLICIES`); its value is what REST takes and gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.group import Group, Names
from anabranch.admin.paths import bundle_url, component, namespace_url, policy_setter, policy_url, topic_url, topics_url


class Namespaces(Group):
    """Named `tenant/namespace`."""

    async def list(self, tenant: str) -> Names:
        """Namespaces of a tenant, as `tenant/namespace`."""
        return await self._names("GET", f"/admin/v2/namespaces/{component(tenant)}")

    async def get(self, namespace: str) -> dict[str, Any]:
        """All its policies."""
        return await self._object("GET", namespace_url(namespace))

    async def create(
        self, namespace: str, policies: Mapping[str, Any] | None = None, *, exist_ok: bool = False
    ) -> None:
        """`exist_ok`: leaves an existing one and its policies unchanged."""
        path, body = namespace_url(namespace), None if policies is None else dict(policies)
        await self._create("PUT", path, body, exist_ok=exist_ok, proof=path)

    async def delete(self, namespace: str, *, force: bool = False) -> None:
        """`force`: with its topics."""
        await self._done("DELETE", namespace_url(namespace), query={"force": force})

    async def topics(self, namespace: str, *, mode: str = "PERSISTENT") -> Names:
        """`mode`: PERSISTENT, NON_PERSISTENT or ALL."""
        return await self._names("GET", namespace_url(namespace, "topics"), query={"mode": mode})

    # -- policies

    async def policy(self, namespace: str, name: str) -> Any:
        """The value of one of `POLICIES`; None when it is not set."""
        return await self._value("GET", policy_url(namespace, name, "GET"))

    async def set_policy(self, namespace: str, name: str, value: Any) -> None:
        """Sets one policy by its name in REST, for example `messageTTL`; `value` is its JSON form."""
        method = policy_setter(name)
        await self._done(method, policy_url(namespace, name, method), value)

    async def remove_policy(self, namespace: str, name: str) -> None:
        """Removes one policy by its name in REST: the broker's settings count again."""
        await self._done("DELETE", policy_url(namespace, name, "DELETE"))

    async def remove_offload_policies(self, namespace: str) -> None:
        """Removes the offload policies, which are kept for tools only."""
        await self._done("DELETE", namespace_url(namespace, "removeOffloadPolicies"))

    async def of_anti_affinity_group(self, cluster: str, group: str, tenant: str) -> Names:
        """Namespaces of the tenant in this group (stored only)."""
        path = "/".join(["/admin/v2/namespaces", component(cluster), "antiAffinity", component(group)])
        return await self._names("GET", path, query={"tenant": tenant})

    async def auto_scale_policy(self, namespace: str, *, applied: bool = False) -> Any:
        """Of its scalable topics; None when nothing is set. `applied`: the policy in force, with all fields."""
        query = {"applied": True} if applied else None
        return await self._value("GET", namespace_url(namespace, "scalableTopicAutoScalePolicy"), query=query)

    async def set_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """Replaces what the namespace sets. Refused when it contradicts the policy of a topic."""
        await self._done("POST", namespace_url(namespace, "scalableTopicAutoScalePolicy"), dict(policy))

    async def remove_auto_scale_policy(self, namespace: str) -> None:
        """Removes the namespace's level of the auto-scale policy."""
        await self._done("DELETE", namespace_url(namespace, "scalableTopicAutoScalePolicy"))

    async def backlog_quotas(self, namespace: str) -> dict[str, Any]:
        """By type: `destination_storage` (bytes) and `message_age` (seconds)."""
        return await self._object("GET", namespace_url(namespace, "backlogQuotaMap"))

    async def set_backlog_quota(
        self, namespace: str, quota: Mapping[str, Any], *, kind: str = "destination_storage"
    ) -> None:
        """`quota` has `limitSize` or `limitTime`, and `policy`."""
        await self._done("POST", namespace_url(namespace, "backlogQuota"), dict(quota), {"backlogQuotaType": kind})

    async def remove_backlog_quota(self, namespace: str, *, kind: str = "destination_storage") -> None:
        """Removes the quota by size (`destination_storage`) or by age (`message_age`)."""
        await self._done("DELETE", namespace_url(namespace, "backlogQuota"), query={"backlogQuotaType": kind})

    # -- properties

    async def properties(self, namespace: str) -> dict[str, Any]:
        """Properties of the namespace."""
        return await self._object("GET", namespace_url(namespace, "properties"))

    async def add_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Adds properties to those that are set."""
        await self._done("PUT", namespace_url(namespace, "properties"), dict(properties))

    async def clear_properties(self, namespace: str) -> None:
        """Removes all properties."""
        await self._done("DELETE", namespace_url(namespace, "properties"))

    async def property(self, namespace: str, key: str) -> str:
        """Value of one property; 404 if it is not set."""
        return await self._text("GET", namespace_url(namespace, "property", key))

    async def set_property(self, namespace: str, key: str, value: str) -> None:
        """Sets one property."""
        await self._done("PUT", namespace_url(namespace, "property", key, value))

    async def remove_property(self, namespace: str, key: str) -> str:
        """Returns the removed value."""
        return await self._text("DELETE", namespace_url(namespace, "property", key))

    # -- bundles

    async def bundles(self, namespace: str) -> dict[str, Any]:
        """Hash ranges of the namespace, for `unload`."""
        return await self._object("GET", namespace_url(namespace, "bundles"))

    async def split_bundle(self, namespace: str, bundle: str, *, unload: bool = False) -> None:
        """Splits one bundle in the middle. Bundles name ranges for `unload`; topics do not move."""
        await self._done("PUT", namespace_url(namespace, bundle, "split"), query={"unload": unload})

    async def delete_bundle(self, namespace: str, bundle: str) -> None:
        """One without topics."""
        await self._done("DELETE", namespace_url(namespace, bundle))

    async def topic_hash_positions(self, namespace: str, bundle: str, *, topics: Sequence[str] = ()) -> dict[str, Any]:
        """Hashes of the topics of a bundle, or of some of them."""
        query = {"topics": ",".join(topics) or None}
        return await self._object("GET", namespace_url(namespace, bundle, "topicHashPositions"), query=query)

    async def non_persistent_topics_of_bundle(self, namespace: str, bundle: str) -> Names:
        """Loaded non-persistent topics of one bundle."""
        return await self._names("GET", topics_url("non-persistent", namespace, component(bundle)))

    async def unload(self, namespace: str, *, bundle: str | None = None, destination: str | None = None) -> None:
        """Closes its topics, or those of one bundle; clients reconnect, to the broker `destination` if given."""
        query = {"destinationBroker": destination}
        await self._done("PUT", bundle_url(namespace, bundle, "unload"), query=query)

    async def clear_backlog(
        self, namespace: str, *, subscription: str | None = None, bundle: str | None = None
    ) -> None:
        """Of all its topics, or those of one bundle; of one subscription or of all."""
        parts = ("clearBacklog",) if subscription is None else ("clearBacklog", subscription)
        await self._done("POST", bundle_url(namespace, bundle, *parts))

    async def unsubscribe(self, namespace: str, subscription: str, *, bundle: str | None = None) -> None:
        """Deletes a subscription from all its topics, or those of one bundle."""
        await self._done("POST", bundle_url(namespace, bundle, "unsubscribe", subscription))

    # -- permissions

    async def permissions(self, namespace: str) -> dict[str, Any]:
        """Role to actions."""
        return await self._object("GET", namespace_url(namespace, "permissions"))

    async def grant(self, namespace: str, role: str, actions: Sequence[str]) -> None:
        """`actions`: produce, consume, functions, sources, sinks, packages."""
        await self._done("POST", namespace_url(namespace, "permissions", role), [*actions])

    async def revoke(self, namespace: str, role: str) -> None:
        """Takes all permissions on the namespace from a role."""
        await self._done("DELETE", namespace_url(namespace, "permissions", role))

    async def subscription_permissions(self, namespace: str) -> dict[str, Any]:
        """Roles by subscription that may use it; others may not."""
        return await self._object("GET", namespace_url(namespace, "permissions", "subscription"))

    async def grant_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Lets only these roles, and those added before, use a subscription."""
        await self._done("POST", namespace_url(namespace, "permissions", "subscription", subscription), [*roles])

    async def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Takes the permission on a subscription from a role."""
        await self._done("DELETE", namespace_url(namespace, "permissions", subscription, role))

    async def grant_on_topics(self, grants: Sequence[Mapping[str, Any]]) -> None:
        """Each has `topic`, `role` and `actions`."""
        await self._done("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", [dict(one) for one in grants])

    async def revoke_on_topics(self, grants: Sequence[Mapping[str, Any]]) -> None:
        """Each has `topic` and `role`."""
        await self._done("POST", "/admin/v2/namespaces/revokePermissionsOnTopics", [dict(one) for one in grants])

    async def topic_permissions(self, topic: str) -> dict[str, Any]:
        """Actions by role on one topic, with those of its namespace."""
        return await self._object("GET", topic_url(topic, "permissions"))

    async def grant_on_topic(self, topic: str, role: str, actions: Sequence[str]) -> None:
        """Lets a role do these actions on one topic: `produce`, `consume`, …"""
        await self._done("POST", topic_url(topic, "permissions", role), [*actions])

    async def revoke_on_topic(self, topic: str, role: str) -> None:
        """Takes the permissions on one topic from a role."""
        await self._done("DELETE", topic_url(topic, "permissions", role))
