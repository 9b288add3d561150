"""The groups of one topic during one leader term: one `GroupCoordinator` per ordered subscription.

A subscription that was deleted and created again is another incarnation and gets a new coordinator.
"""

from __future__ import annotations

from weakref import ref

from anabranch.controller import segment_host as host
from anabranch.controller.events import NotLeading, UnknownSubscription
from anabranch.controller.group.group_coordinator import GroupCoordinator
from anabranch.controller.group.topic_leader import TopicLeader
from anabranch.controller.record_store import RecordStore
from anabranch.controller.records.subscription_registry import Subscription, SubscriptionKind, SubscriptionState
from anabranch.model.autoscale.evaluator import GroupDemand
from anabranch.model.errors import Error
from anabranch.model.names import encode_component
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)


class TopicGroups:
    def __init__(self, leader: TopicLeader, records: RecordStore) -> None:
        self.by_name: dict[str, GroupCoordinator] = {}
        self._has_restored = False
        self._leader_ref, self._records = ref(leader), records  # the leader owns this object

    @property
    def _leader(self) -> TopicLeader:
        leader = self._leader_ref()
        assert leader is not None, "groups are used by their leader"
        return leader

    def ordered(self, name: str) -> Subscription | None:
        """The subscription, if it is ordered (its segments are assigned to consumers) and ready."""
        registry = self._leader.registry
        found = None if registry is None else registry.subscriptions.get(name)
        if found is None or found.state is not SubscriptionState.READY or found.kind is SubscriptionKind.QUEUE:
            return None
        return found

    def of(self, subscription: Subscription) -> GroupCoordinator:
        """The coordinator of this incarnation of the subscription."""
        found = self.by_name.get(subscription.name)
        if found is None or found.subscription_incarnation != subscription.operation_id:
            if found is not None:
                found.end(NotLeading(f"subscription {subscription.name} was deleted and created again"))
            leader, record = self._leader, self._leader.record
            if leader.is_over:
                raise NotLeading(f"{leader.topic} is no longer led here")
            assert record is not None
            found = self.by_name[subscription.name] = GroupCoordinator(leader, self._records, subscription, record)
            found.start()
        return found

    async def restore(self) -> None:
        """Restores the groups of the last leader. The grace periods of their consumers begin now."""
        leader, failures = self._leader, 0
        while not leader.is_over:
            record, registry = leader.record, leader.registry
            if record is not None and registry is not None:
                try:
                    stored = await self._records.group_names(leader.topic, record.incarnation)
                except Error as error:
                    log.warning(
                        "consumer groups not restored yet, retrying",
                        extra={"topic": str(leader.topic), "reason": error.reason},
                    )
                else:
                    for name in registry.subscriptions:
                        found = self.ordered(name)
                        if found is not None and encode_component(name) in stored:
                            self.of(found)
                    self._has_restored = True
                    leader.groups_restored()
                    return
            failures += 1
            await leader.pause(failures)

    async def forget(self, name: str) -> None:
        """The subscription was deleted: its group ends, and the group's record is deleted."""
        members = self.by_name.pop(name, None)
        if members is not None:
            members.end(UnknownSubscription(f"subscription {name} was deleted"))
        record = self._leader.record
        if record is not None:
            await self._records.forget_group(self._leader.topic, record.incarnation, name)

    def end(self, error: Error) -> None:
        """Stops all groups; pending registrations fail with this error."""
        for members in self.by_name.values():
            members.end(error)

    def clear(self) -> None:
        """The leader leads no longer. Coordinators refer to it; without this they would stay in memory together."""
        self.by_name.clear()

    def placement_changed(self) -> None:
        """Segments may have new owners. Drains that the former owners did not report are asked for."""
        for members in tuple(self.by_name.values()):
            members.placement_changed()

    def on_segment_event(self, event: host.Drained | host.Refilled | host.ReaderLeft) -> None:
        members = self.by_name.get(event.subscription)
        if members is not None:
            members.on_segment_event(event)

    @property
    def are_known(self) -> bool:
        """The consumers of the last leader's groups are restored, so `demands` is complete."""
        return self._has_restored and all(one.group.is_ready for one in self.by_name.values())

    def demands(self) -> list[GroupDemand]:
        """Consumers of each ordered subscription, for auto-scaling."""
        return [
            GroupDemand(name, len(members.group.sessions.names), members.group.drain.undrained)
            for name, members in sorted(self.by_name.items())
            if members.group.has_layout and members.has_sessions
        ]

    @property
    def counts(self) -> tuple[tuple[str, int, int], ...]:
        """Name, consumers and drained segments of each group: changes whenever `demands` does."""
        return tuple(
            (name, len(one.group.sessions.names), one.group.drain.drained_count) for name, one in self.by_name.items()
        )

    @property
    def have_sessions(self) -> bool:
        return any(members.has_sessions for members in self.by_name.values())
