"""Paths of the admin REST, and the policies of namespaces. Names are encoded only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.admin.errors import BadCall
from anabranch.model.names import TopicName, encode_component, parse_namespace

component = encode_component


def topic_path(topic: str) -> str:
    """`x`, `t/n/x` or `persistent://t/n/x` as the paths of REST name it."""
    name = TopicName.parse(topic)
    return f"{name.domain.value}/{name.tenant}/{name.namespace}/{name.encoded_local}"


def scalable_path(topic: str) -> str:
    """`x`, `t/n/x` or `topic://t/n/x` as the paths of scalable topics name it: without a domain."""
    name = TopicName.parse(topic)
    return f"{name.tenant}/{name.namespace}/{name.encoded_local}"


def namespace_path(namespace: str) -> str:
    tenant, local = parse_namespace(namespace)
    return f"{tenant}/{local}"


# ------------------------------------------------------------------------------------------------------ whole paths


def tenant_url(tenant: str) -> str:
    return f"/admin/v2/tenants/{component(tenant)}"


def tenant_body(admin_roles: Sequence[str], allowed_clusters: Sequence[str]) -> dict[str, Any]:
    return {"adminRoles": [*admin_roles], "allowedClusters": [*allowed_clusters]}


def cluster_url(cluster: str, *parts: str) -> str:
    return "/".join(["/admin/v2/clusters", *map(component, (cluster, *parts))])


def brokers_url(*parts: str) -> str:
    return "/".join(["/admin/v2/brokers", *map(component, parts)])


def namespace_url(namespace: str, *parts: str) -> str:
    return "/".join(["/admin/v2/namespaces", namespace_path(namespace), *map(component, parts)])


def bundle_url(namespace: str, bundle: str | None, *parts: str) -> str:
    """Of the whole namespace without a bundle."""
    return namespace_url(namespace, *parts) if bundle is None else namespace_url(namespace, bundle, *parts)


def topics_url(domain: str, namespace: str, *parts: str) -> str:
    return "/".join(["/admin/v2", component(domain), namespace_path(namespace), *parts])


def topic_url(topic: str, *parts: str) -> str:
    return "/".join(["/admin/v2", topic_path(topic), *map(component, parts)])


def lookup_url(kind: str, topic: str, *parts: str) -> str:
    return "/".join(["/lookup/v2", kind, topic_path(topic), *parts])


def subscription_url(topic: str, subscription: str, *parts: str) -> str:
    return topic_url(topic, "subscription", subscription, *parts)


def schema_url(topic: str, *parts: str) -> str:
    return "/".join(["/admin/v2/schemas", scalable_path(topic), *map(component, parts)])


def scalable_url(topic: str, *parts: str) -> str:
    return "/".join(["/admin/v2/scalable", scalable_path(topic), *map(component, parts)])


def timeline_url(topic: str, *parts: str) -> str:
    return "/".join(["/anabranch/v1/scalable", scalable_path(topic), *map(component, parts)])


def segment_url(topic: str, descriptor: str, *parts: str) -> str:
    return "/".join(["/admin/v2/segments", scalable_path(topic), component(descriptor), *map(component, parts)])


# --------------------------------------------------------------------------------------------------------- policies

_PLAIN = ("GET", "POST", "DELETE")
_KEPT = ("GET", "POST")  # cannot be unset
POLICIES: Mapping[str, tuple[str, ...]] = {  # name to what can be done: look, set, unset
    "allowedClusters": _KEPT,
    "antiAffinity": _PLAIN,
    "autoSubscriptionCreation": _PLAIN,
    "autoTopicCreation": _PLAIN,
    "compactionThreshold": ("GET", "PUT", "DELETE"),
    "deduplication": _PLAIN,
    "deduplicationSnapshotInterval": _KEPT,
    "delayedDelivery": _PLAIN,
    "dispatchRate": _PLAIN,
    "dispatcherPauseOnAckStatePersistent": _PLAIN,
    "encryptionRequired": _KEPT,
    "inactiveTopicPolicies": _PLAIN,
    "isAllowAutoUpdateSchema": _KEPT,
    "maxConsumersPerSubscription": _PLAIN,
    "maxConsumersPerTopic": _PLAIN,
    "maxProducersPerTopic": _PLAIN,
    "maxSubscriptionsPerTopic": _PLAIN,
    "maxTopicsPerNamespace": _PLAIN,
    "maxUnackedMessagesPerConsumer": _PLAIN,
    "maxUnackedMessagesPerSubscription": _PLAIN,
    "messageTTL": _PLAIN,
    "offloadDeletionLagMs": ("GET", "PUT", "DELETE"),
    "offloadPolicies": _KEPT,  # removed by `remove_offload_policies`
    "offloadThreshold": ("GET", "PUT"),
    "offloadThresholdInSeconds": ("GET", "PUT"),
    "persistence": _PLAIN,
    "publishRate": _PLAIN,
    "replication": _KEPT,
    "replicatorDispatchRate": _PLAIN,
    "retention": _PLAIN,
    "scalableTopicAutoScalePolicy": _PLAIN,
    "schemaAutoUpdateCompatibilityStrategy": ("GET", "PUT"),
    "schemaCompatibilityStrategy": ("GET", "PUT"),
    "schemaValidationEnforced": _KEPT,
    "subscribeRate": _PLAIN,
    "subscriptionAuthMode": _KEPT,
    "subscriptionDispatchRate": _PLAIN,
    "subscriptionExpirationTime": _PLAIN,
    "subscriptionTypesEnabled": _PLAIN,
}


def policy_url(namespace: str, name: str, method: str) -> str:
    """Raises BadCall for what is no policy, or cannot be changed."""
    if method not in POLICIES.get(name, ()):
        known = "is no policy of a namespace" if name not in POLICIES else "cannot be changed like this"
        raise BadCall(f"{name!r} {known}")
    return namespace_url(namespace, name)


def policy_setter(name: str) -> str:
    """The method that sets it."""
    return next((one for one in POLICIES.get(name, ()) if one in ("POST", "PUT")), "POST")


def topic_policy_url(topic: str, name: str, method: str, subscription: str | None) -> str:
    """`subscription`: of its dispatch rate. Raises BadCall for what is no policy."""
    if subscription is not None:
        if name != "dispatchRate":
            raise BadCall("only `dispatchRate` is set for single subscriptions")
        return topic_url(topic, subscription, name)
    if name not in TOPIC_POLICIES:
        raise BadCall(f"{name!r} is no policy of a topic")
    return topic_url(topic, "backlogQuota" if name == "backlogQuotaMap" and method != "GET" else name)


def topic_policy_setter(name: str) -> str:
    """The method that sets it."""
    return "PUT" if name == "schemaCompatibilityStrategy" else "POST"


def topic_policy_query(name: str, value: Any) -> dict[str, Any]:
    """What is sent in the query instead of the body."""
    return {name: value} if name in ("messageTTL", "subscriptionExpirationTime") else {}


TOPIC_POLICIES = (
    "autoSubscriptionCreation",
    "backlogQuotaMap",
    "compactionThreshold",
    "deduplicationEnabled",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "dispatchRate",
    "dispatcherPauseOnAckStatePersistent",
    "entryFilters",
    "inactiveTopicPolicies",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxMessageSize",
    "maxProducers",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "messageTTL",
    "offloadPolicies",
    "persistence",
    "publishRate",
    "replication",
    "replicatorDispatchRate",
    "retention",
    "schemaCompatibilityStrategy",
    "schemaValidationEnforced",
    "subscribeRate",
    "subscriptionDispatchRate",
    "subscriptionExpirationTime",
    "subscriptionTypesEnabled",
)
