"""Authorization: decides from roles and grants whether an action is allowed.

| action | super-user | tenant admin | role with a grant | any role |
|---|---|---|---|---|
| SUPERVISE (tenants, brokers) | yes | no | no | no |
| ADMINISTER (namespaces, policies, permissions, topics) | yes | yes | no | no |
| PRODUCE | yes | yes | `produce` | no |
| CONSUME | yes | yes | `consume`, and the subscription is theirs | no |
| LOOKUP (lookup, partitions, stats, schema) | yes | yes | `produce` or `consume` | no |
| LIST (topics of a namespace) | yes | yes | `produce` or `consume` on the namespace | no |
| SIGNED_IN | yes | yes | yes | yes |
| OPEN | all, without authentication |

A grant on a namespace covers its topics; a grant on a partitioned topic covers its partitions. A regular and a scalable
topic never have the same name, so a grant on one name is a grant on the other: it covers the segments, and stays when
the topic is migrated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from anabranch.model.errors import BadRequest, Error
from anabranch.model.names import Domain, TopicName

Roles = Mapping[str, frozenset[str]]
"""Role to what was granted to it, by Pulsar's words."""

GRANTABLE = ("produce", "consume", "functions", "sources", "sinks", "packages")


class Unauthorized(Error):
    """Authenticated, but not allowed."""

    code = "authorization"


class Action(StrEnum):
    OPEN = "open"
    SIGNED_IN = "signed-in"
    LOOKUP = "lookup"
    LIST = "list"
    PRODUCE = "produce"
    CONSUME = "consume"
    ADMINISTER = "administer"
    SUPERVISE = "supervise"


class SubscriptionMode(StrEnum):
    """Whether a role may use any subscription name, or only names that begin with the role."""

    ANY = "None"
    PREFIX = "Prefix"


@dataclass(frozen=True, slots=True)
class Resource:
    """What an action is about: the whole broker, a tenant, a namespace, a topic, or a subscription of a topic."""

    tenant: str | None = None
    namespace: str | None = None  # "tenant/namespace"
    topic: TopicName | None = None
    subscription: str | None = None

    @staticmethod
    def of_topic(topic: TopicName, subscription: str | None = None) -> Resource:
        return Resource(topic.tenant, topic.namespace_path, topic, subscription)

    @staticmethod
    def of_namespace(namespace: str) -> Resource:
        return Resource(namespace.partition("/")[0], namespace)

    def __str__(self) -> str:
        if self.topic is not None:
            return f"topic {self.topic}" if self.subscription is None else f"{self.subscription!r} of {self.topic}"
        if self.namespace is not None:
            return f"namespace {self.namespace}"
        return f"tenant {self.tenant}" if self.tenant is not None else "this broker"


BROKER = Resource()


@dataclass(frozen=True, slots=True)
class Grants:
    """Grants in one namespace's record, under Pulsar's names (`auth_policies`)."""

    namespace: Roles = field(default_factory=dict)
    topics: Mapping[str, Roles] = field(default_factory=dict)  # by full topic name
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # subscription to its roles
    mode: SubscriptionMode = SubscriptionMode.ANY

    @staticmethod
    def load(record: Mapping[str, Any]) -> Grants:
        """From a namespace record or the body of a request; BadRequest if it is malformed."""
        value = _object(record.get("auth_policies"))
        return Grants(
            _roles(value.get("namespace_auth")),
            {
                str(TopicName.parse(topic)): _roles(roles)
                for topic, roles in _object(value.get("destination_auth")).items()
            },
            {name: role_set(roles) for name, roles in _object(value.get("subscription_auth_roles")).items()},
            parse_mode(record.get("subscription_auth_mode") or SubscriptionMode.ANY),
        )

    def dump(self) -> dict[str, Any]:
        """What `load` reads."""
        return {
            "auth_policies": {
                "namespace_auth": shown(self.namespace),
                "destination_auth": {topic: shown(roles) for topic, roles in self.topics.items()},
                "subscription_auth_roles": {name: sorted(roles) for name, roles in self.subscriptions.items()},
            },
            "subscription_auth_mode": self.mode.value,
        }

    def with_namespace_role(self, role: str, actions: frozenset[str]) -> Grants:
        """Replaces the role's grants on the namespace; no actions remove the role."""
        return replace(self, namespace=_changed(self.namespace, role, actions))

    def with_topic_role(self, topic: TopicName, role: str, actions: frozenset[str]) -> Grants:
        roles = _changed(self.topics.get(str(topic), {}), role, actions)
        others = {name: granted for name, granted in self.topics.items() if name != str(topic)}
        return replace(self, topics={**others, str(topic): roles} if roles else others)

    def without_topic(self, topic: TopicName) -> Grants:
        """Removes the grants on the topic under all of its names; of a partition only its own."""
        gone = {str(topic)} if topic.partition_index >= 0 else _names(topic)
        return replace(self, topics={name: roles for name, roles in self.topics.items() if name not in gone})

    def with_subscription(self, subscription: str, roles: frozenset[str] | None) -> Grants:
        """Replaces the roles of the subscription; None: every role with `consume` may use it."""
        others = {name: owners for name, owners in self.subscriptions.items() if name != subscription}
        return replace(self, subscriptions=others if roles is None else {**others, subscription: roles})

    def held(self, role: str, topic: TopicName | None) -> frozenset[str]:
        """Everything `role` was granted that counts for this topic (None: for the namespace as a whole)."""
        found = self.namespace.get(role, frozenset())
        if topic is not None:
            for name in _names(topic) if self.topics else ():
                found |= self.topics.get(name, {}).get(role, frozenset())
        return found


def _names(topic: TopicName) -> set[str]:
    """The names under which a grant covers this topic, partition or segment."""
    found = {str(topic), str(topic.base)}
    if topic.domain is not Domain.NON_PERSISTENT:
        one = topic.scalable
        found |= {str(one), str(TopicName(Domain.PERSISTENT, one.tenant, one.namespace, one.local))}
    return found


@dataclass(frozen=True, slots=True)
class AccessPolicies:
    """Input of a decision, besides role, action and resource."""

    superusers: frozenset[str] = frozenset()
    tenant_admins: frozenset[str] = frozenset()
    grants: Grants = field(default_factory=Grants)


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    reason: str


def decide(role: str | None, action: Action, resource: Resource, policies: AccessPolicies) -> Decision:
    """Whether `role` may do this. None: the client is not authenticated."""
    if action is Action.OPEN:
        return Decision(True, "open to everybody")
    if role is None:
        return Decision(False, "not authenticated")
    if role in policies.superusers:
        return Decision(True, "super-user")
    if action is Action.SIGNED_IN:
        return Decision(True, "signed in")
    if action is Action.SUPERVISE:
        return _no(role, action, resource, "only super-users may")
    if resource.tenant is not None and role in policies.tenant_admins:
        return Decision(True, "tenant admin")
    if resource.namespace is None or action is Action.ADMINISTER:
        return _no(role, action, resource, "only admins of the tenant may")
    return _by_grant(role, action, resource, policies.grants)


def _by_grant(role: str, action: Action, resource: Resource, grants: Grants) -> Decision:
    held = grants.held(role, resource.topic)
    match action:
        case Action.PRODUCE | Action.CONSUME:
            needed = frozenset({action.value})
        case Action.LOOKUP | Action.LIST:
            needed = frozenset({"produce", "consume"})
        case _:  # an action without a rule is refused
            return _no(role, action, resource, "the action has no rule")
    if not held & needed:
        return _no(role, action, resource, f"needs a grant of {' or '.join(sorted(needed))}")
    if action is Action.CONSUME and resource.subscription is not None:
        owners = grants.subscriptions.get(resource.subscription)
        if owners is not None and role not in owners:
            return _no(role, action, resource, "the subscription belongs to other roles")
        if grants.mode is SubscriptionMode.PREFIX and not resource.subscription.startswith(role):
            return _no(role, action, resource, "the subscription's name must begin with the role's")
    return Decision(True, "granted")


def _no(role: str, action: Action, resource: Resource, why: str) -> Decision:
    return Decision(False, f"role {role!r} is not allowed to {action.value} on {resource}: {why}")


def _changed(roles: Roles, role: str, actions: frozenset[str]) -> dict[str, frozenset[str]]:
    others = {name: granted for name, granted in roles.items() if name != role}
    return {**others, role: actions} if actions else others


# -- parsing


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON object; absent is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise BadRequest('auth_policies are objects like {"namespace_auth": {"role": ["produce"]}}')
    return value or {}


def _roles(value: Any) -> dict[str, frozenset[str]]:
    return {parse_role(role): parse_actions(actions) for role, actions in _object(value).items()}


def parse_role(value: Any) -> str:
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        raise BadRequest("a role is a text that is not blank")
    return value


def parse_actions(value: Any) -> frozenset[str]:
    """A list of Pulsar's words; an unknown one is refused (Pulsar stores it as null)."""
    if value is None:
        raise BadRequest("Actions should not be null")
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise BadRequest('actions are a list like ["produce", "consume"]')
    unknown = [one for one in value if one not in GRANTABLE]
    if unknown:
        raise BadRequest(f"unknown action {unknown[0]!r}: one of {', '.join(GRANTABLE)}")
    return frozenset(value)


def role_set(value: Any) -> frozenset[str]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise BadRequest('roles are a list like ["role"]')
    return frozenset(parse_role(role) for role in value)


def parse_mode(value: Any) -> SubscriptionMode:
    try:
        return SubscriptionMode(value)
    except ValueError:
        raise BadRequest(f"the mode is one of {', '.join(SubscriptionMode)}") from None


def shown(roles: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """As JSON, sorted."""
    return {role: sorted(actions) for role, actions in sorted(roles.items())}
