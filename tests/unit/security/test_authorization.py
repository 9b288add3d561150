"""Authorization: every action, every kind of role, and that every action has a rule."""

from __future__ import annotations

import itertools

import pytest

from anabranch.model.errors import BadName, BadRequest
from anabranch.model.names import TopicName
from anabranch.security.authorization import (
    BROKER,
    AccessPolicies,
    Action,
    Grants,
    Resource,
    SubscriptionMode,
    decide,
    parse_actions,
    parse_role,
)

TOPIC = TopicName.parse("persistent://t/n/x")
OTHER = TopicName.parse("persistent://t/n/y")
ELSEWHERE = TopicName.parse("persistent://t/m/x")
PRODUCE, CONSUME = frozenset({"produce"}), frozenset({"consume"})
POLICIES = AccessPolicies(
    superusers=frozenset({"root"}),
    tenant_admins=frozenset({"boss"}),
    grants=Grants(
        namespace={"reader": CONSUME, "writer": PRODUCE, "packer": frozenset({"packages"})},
        topics={str(TOPIC): {"guest": PRODUCE | CONSUME}},
        subscriptions={"audit": frozenset({"auditor"}), "closed": frozenset()},
    ),
)


def allowed(role: str | None, action: Action, resource: Resource, policies: AccessPolicies = POLICIES) -> bool:
    return decide(role, action, resource, policies).allowed


@pytest.mark.parametrize(
    ("action", "resource", "who"),
    [
        (Action.OPEN, BROKER, {None, "root", "boss", "reader", "writer", "guest", "packer", "nobody"}),
        (Action.SIGNED_IN, BROKER, {"root", "boss", "reader", "writer", "guest", "packer", "nobody"}),
        (Action.SUPERVISE, BROKER, {"root"}),
        (Action.SUPERVISE, Resource("t"), {"root"}),
        (Action.ADMINISTER, BROKER, {"root"}),
        (Action.ADMINISTER, Resource("t"), {"root", "boss"}),
        (Action.ADMINISTER, Resource.of_namespace("t/n"), {"root", "boss"}),
        (Action.ADMINISTER, Resource.of_topic(TOPIC), {"root", "boss"}),
        (Action.PRODUCE, Resource.of_topic(TOPIC), {"root", "boss", "writer", "guest"}),
        (Action.PRODUCE, Resource.of_topic(OTHER), {"root", "boss", "writer"}),
        (Action.CONSUME, Resource.of_topic(TOPIC, "s"), {"root", "boss", "reader", "guest"}),
        (Action.CONSUME, Resource.of_topic(OTHER, "s"), {"root", "boss", "reader"}),
        (Action.CONSUME, Resource.of_topic(TOPIC, "audit"), {"root", "boss"}),
        (Action.CONSUME, Resource.of_topic(TOPIC, "closed"), {"root", "boss"}),
        (Action.LOOKUP, Resource.of_topic(TOPIC), {"root", "boss", "reader", "writer", "guest"}),
        (Action.LOOKUP, Resource.of_topic(OTHER), {"root", "boss", "reader", "writer"}),
        (Action.LIST, Resource.of_namespace("t/n"), {"root", "boss", "reader", "writer"}),
        (Action.PRODUCE, BROKER, {"root"}),
        (Action.LOOKUP, Resource("t"), {"root", "boss"}),
    ],
)
def test_decisions_by_role_and_action(action: Action, resource: Resource, who: set[str | None]) -> None:
    everybody = (None, "root", "boss", "reader", "writer", "guest", "packer", "nobody")
    assert {role for role in everybody if allowed(role, action, resource)} == who


def test_restricted_subscription_needs_role_and_consume() -> None:
    grants = Grants(namespace={"auditor": CONSUME, "x": CONSUME}, subscriptions={"audit": frozenset({"auditor", "y"})})
    policies = AccessPolicies(grants=grants)
    resource = Resource.of_topic(TOPIC, "audit")
    assert [allowed(role, Action.CONSUME, resource, policies) for role in ("auditor", "x", "y")] == [True, False, False]


def test_prefix_mode_requires_role_as_name_prefix() -> None:
    policies = AccessPolicies(grants=Grants(namespace={"app": CONSUME}, mode=SubscriptionMode.PREFIX))
    assert allowed("app", Action.CONSUME, Resource.of_topic(TOPIC, "app-1"), policies)
    assert not allowed("app", Action.CONSUME, Resource.of_topic(TOPIC, "other-1"), policies)


def test_grant_on_topic_covers_partitions_not_vice_versa() -> None:
    parent = AccessPolicies(grants=Grants(topics={str(TOPIC): {"r": PRODUCE}}))
    one = AccessPolicies(grants=Grants(topics={str(TOPIC.partition(1)): {"r": PRODUCE}}))
    assert allowed("r", Action.PRODUCE, Resource.of_topic(TOPIC.partition(1)), parent)
    assert allowed("r", Action.PRODUCE, Resource.of_topic(TOPIC.partition(1)), one)
    assert not allowed("r", Action.PRODUCE, Resource.of_topic(TOPIC.partition(0)), one)
    assert not allowed("r", Action.PRODUCE, Resource.of_topic(TOPIC), one)


def test_refusal_has_a_reason() -> None:
    reason = decide("reader", Action.PRODUCE, Resource.of_topic(TOPIC), POLICIES).reason
    assert "'reader'" in reason and "produce" in reason and str(TOPIC) in reason


def test_grants_round_trip_through_record() -> None:
    made = (
        Grants(mode=SubscriptionMode.PREFIX)
        .with_namespace_role("a", PRODUCE | CONSUME)
        .with_topic_role(TOPIC, "b", PRODUCE)
        .with_subscription("s", frozenset({"c"}))
        .with_subscription("closed", frozenset())
    )
    assert Grants.load(made.dump()) == made
    assert Grants.load({}) == Grants()
    assert made.with_namespace_role("a", frozenset()).namespace == {}
    assert made.with_topic_role(TOPIC, "b", frozenset()).topics == {}
    assert made.without_topic(TOPIC).topics == {}
    assert set(made.with_subscription("s", None).subscriptions) == {"closed"}


@pytest.mark.parametrize(
    "record",
    [
        {"auth_policies": []},
        {"auth_policies": {"namespace_auth": []}},
        {"auth_policies": {"namespace_auth": {"r": "produce"}}},
        {"auth_policies": {"namespace_auth": {"r": ["fly"]}}},
        {"auth_policies": {"namespace_auth": {"": ["produce"]}}},
        {"auth_policies": {"destination_auth": []}},
        {"auth_policies": {"destination_auth": {"x": {"r": [None]}}}},
        {"auth_policies": {"subscription_auth_roles": {"s": "r"}}},
        {"subscription_auth_mode": "zzz"},
    ],
)
def test_malformed_grants_are_refused(record: dict[str, object]) -> None:
    with pytest.raises((BadRequest, BadName)):
        Grants.load(record)


def test_roles_actions_and_modes_are_validated() -> None:
    assert parse_actions(["consume", "produce"]) == {"produce", "consume"}
    for bad in (None, "produce", ["fly"], [None], [["produce"]], {"produce": 1}):
        with pytest.raises(BadRequest):
            parse_actions(bad)
    for role in (None, "", " r", "r\n", 3):
        with pytest.raises(BadRequest):
            parse_role(role)


def test_every_action_has_a_decision() -> None:
    resources = (BROKER, Resource("t"), Resource.of_namespace("t/n"), Resource.of_topic(TOPIC, "s"))
    for action, resource, role in itertools.product(Action, resources, (None, "nobody", "reader", "root")):
        assert decide(role, action, resource, POLICIES).reason
        if role == "nobody" and action not in (Action.OPEN, Action.SIGNED_IN):
            assert not allowed(role, action, resource)


NEW, SEGMENT = TopicName.parse("topic://t/n/x"), TopicName.parse("segment://t/n/x/0000-ffff-0")
PARTITION, VOLATILE = TopicName.parse("persistent://t/n/x-partition-3"), TopicName.parse("non-persistent://t/n/x")


@pytest.mark.parametrize("granted", [TOPIC, NEW])
def test_grant_on_a_topic_covers_it_as_a_scalable_topic_too(granted: TopicName) -> None:
    policies = AccessPolicies(grants=Grants().with_topic_role(granted, "guest", PRODUCE))
    for topic in (TOPIC, NEW, SEGMENT, PARTITION):
        assert allowed("guest", Action.PRODUCE, Resource.of_topic(topic), policies)
    for topic in (VOLATILE, OTHER, ELSEWHERE):
        assert not allowed("guest", Action.PRODUCE, Resource.of_topic(topic), policies)


@pytest.mark.parametrize("deleted", [TOPIC, NEW])
def test_grants_of_a_deleted_topic_go_under_all_of_its_names(deleted: TopicName) -> None:
    grants = Grants().with_topic_role(TOPIC, "guest", PRODUCE).with_topic_role(NEW, "other", PRODUCE)
    grants = grants.with_topic_role(OTHER, "guest", PRODUCE)
    assert set(grants.without_topic(deleted).topics) == {str(OTHER)}


def test_grants_of_a_topic_stay_when_one_of_its_partitions_is_deleted() -> None:
    grants = Grants().with_topic_role(TOPIC, "guest", PRODUCE).with_topic_role(PARTITION, "guest", CONSUME)
    assert set(grants.without_topic(PARTITION).topics) == {str(TOPIC)}
