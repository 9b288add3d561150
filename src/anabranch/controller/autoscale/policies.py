"""The auto-scale policy that applies to a topic: broker settings, namespace and topic, field by field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from anabranch.controller.namespace_rules import Rules
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.topic_record import TopicRecord
from anabranch.model.autoscale.policy import AutoScalePolicy, BadPolicy
from anabranch.model.errors import Error, NotFound
from anabranch.model.names import TopicName
from anabranch.model.routing import RingHash, RoutingKind
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

WARNED_MAX = 1000
Override = Mapping[str, Any]


class EffectivePolicies:
    def __init__(self, base: AutoScalePolicy, rules: Rules, records: RecordStore) -> None:
        """`base`: the broker's settings."""
        self._base, self._rules, self._records = base, rules, records
        self._warned: dict[TopicName, str] = {}
        self._namespaces: dict[str, Override | None] = {}  # as of the last call of `changed_namespaces`

    def use_base(self, base: AutoScalePolicy) -> None:
        """The broker's settings changed: all topics are evaluated at the next tick."""
        self._base = base
        self._namespaces.clear()

    async def of_namespace(self, namespace: str) -> AutoScalePolicy:
        """Of topics that set nothing. Raises NotFound, BadPolicy."""
        return self._base.overridden(await self._rules.auto_scale_policy(namespace))

    async def with_override(self, topic: TopicName, override: Override | None) -> AutoScalePolicy:
        """The policy of the topic if it had this override. Raises BadPolicy."""
        return self._base.overridden(await self._rules.auto_scale_policy(topic.namespace_path), override)

    async def check_namespace(self, namespace: str, override: Override | None) -> None:
        """Raises BadPolicy if the namespace, or a topic with a policy in it, cannot have this override."""
        self._base.overridden(override)
        for topic, record in (await self._records.all_of(namespace)).items():
            if record.auto_scale_policy is None:
                continue
            try:
                self._base.overridden(override, record.auto_scale_policy)
            except BadPolicy as error:
                raise BadPolicy(f"{topic} has a policy that contradicts this one: {error.reason}") from error

    async def changed_namespaces(self, namespaces: Collection[str]) -> set[str]:
        """Those whose level of the policy may be another one than at the last call."""
        found: dict[str, Override | None] = {}
        for namespace in namespaces:
            try:
                found[namespace] = await self._rules.auto_scale_policy(namespace)
            except Error:  # not known: it counts as changed, and the topic's evaluation meets the error
                continue
        before, self._namespaces = self._namespaces, found
        return {one for one in namespaces if one not in found or one not in before or found[one] != before[one]}

    async def effective(self, topic: TopicName) -> AutoScalePolicy | None:
        """As `of_record`; None also if the topic does not exist. The record may be a little out of date."""
        record = await self._records.find(topic, sync=False)
        return None if record is None else await self.of_record(topic, record)

    async def ring_hash(self, topic: TopicName) -> RingHash | None:
        """The hash of the topic's keys; None if it does not exist, or does not route by range."""
        record = await self._records.find(topic, sync=False)
        routing = None if record is None else record.layout.routing
        return None if routing is None or routing.kind is not RoutingKind.RANGE else routing.ring_hash

    async def of_record(self, topic: TopicName, record: TopicRecord) -> AutoScalePolicy | None:
        """None if the levels contradict each other: auto-scaling pauses, and a warning says why, once."""
        try:
            namespace = await self._rules.auto_scale_policy(topic.namespace_path)
            found = self._base.overridden(namespace, record.auto_scale_policy)
        except NotFound:
            return None
        except BadPolicy as error:
            if self._warned.get(topic) != error.reason:
                if len(self._warned) >= WARNED_MAX:
                    self._warned.clear()
                self._warned[topic] = error.reason
                log.warning(
                    "auto-scaling is paused: the levels of the policy contradict each other",
                    extra={"topic": str(topic), "reason": error.reason},
                )
            return None
        self._warned.pop(topic, None)
        return found
