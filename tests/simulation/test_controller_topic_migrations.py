"""Migrations of regular topics while leaders crash and freeze, and owners fail: done whole, or undone without trace."""

from __future__ import annotations

import os

import pytest

from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.records.topic_record import MigratedFrom, MigrationOptions, TopicRecord, migration_planned
from anabranch.controller.records.topic_record_codec import encode_record
from anabranch.controller.segment_host import Adopt, NotPlanned, OldClient, Request, Start
from anabranch.controller.topic.operation_events import DeleteCall, MigrationCall, SplitCall
from anabranch.controller.topic.subscription_events import SubscribeCall, UnsubscribeCall
from anabranch.metadata.interface import ABSENT
from anabranch.model.names import TopicName
from anabranch.model.routing import MOD_N
from tests.support.models.memory_segment_host import Entry
from tests.support.simulation.controller import LINES_SHOWN, RECORD, Broken, Leader, World, name_of
from tests.support.simulation.metadata_processes import seeds

SEEDS = int(os.environ.get("ANABRANCH_SEEDS", "600"))
CHAOS_MS = 1_500
OPERATION = "migration"
OLD = "persistent://public/default/orders"
CLIENT = OldClient("producer", "p", "10.0.0.7:1", "Pulsar-Java-v3")


class Migration(World):
    """A regular topic with backlog, subscriptions on some partitions and perhaps a client that cannot follow."""

    def __init__(self, seed: int) -> None:
        self.partitions = seed % 6
        self.is_chaotic = True
        self.was_undone = self.was_deleted = False
        self.is_forced = seed % 7 == 0
        self.published = 0
        super().__init__(seed, trouble=[0.0, 0.05, 0.2][seed % 3])
        chance, parts = self.chance, self.parts()
        for part in parts:
            some = [name for name in ("audit", "work", "late") if chance.random() < 0.7]
            self.shelf.regular[part] = {name: name == "work" and chance.random() < 0.8 for name in some}
            self.shelf.regular_entries[part] = []
        if chance.random() < 0.3:
            self.shelf.old_clients[chance.choice(parts)] = (CLIENT,)
        if chance.random() < 0.15:
            self.refusals[OPERATION] = 1

    def parts(self) -> list[TopicName]:
        old = TopicName.parse(OLD)
        return [old.partition(index) for index in range(self.partitions)] or [old]

    def create_topic(self, segments: int) -> None:
        """PLAN: the first record of the scalable topic."""
        self.incarnation += 1
        options = MigrationOptions(force=self.is_forced)
        record = migration_planned(
            MigratedFrom(OLD, self.partitions, 5), OPERATION, incarnation=1, epoch=0, routing=MOD_N, options=options
        )
        self.data.put(RECORD, encode_record(record), ABSENT, None)

    def check_request(self, request: Request) -> None:
        record = self.record
        if isinstance(request, Adopt) and (record is None or record.is_deleting or not record.is_migrating):
            raise NotPlanned("no migration is running")

    def _check_segments(self, record: TopicRecord) -> None:
        """Partitions are segments from their adoption on: all of them when it is committed."""
        if not record.is_migrating:
            super()._check_segments(record)

    def _check_record(self, record: TopicRecord | None) -> None:
        self.was_undone |= record is not None and record.is_migrating and record.is_deleting
        super()._check_record(record)

    # what happens meanwhile -------------------------------------------------------------------------------------------
    def publish(self) -> None:
        """To a partition: a regular topic, or a segment that is not sealed."""
        if not self.is_chaotic:
            return
        self.at(self.chance.randint(1, 40), self.publish)
        part = self.chance.choice(self.parts())
        stored = self.shelf.segments.get(part)
        entries = self.shelf.regular_entries.get(part) if stored is None else stored.entries
        if entries is None or (stored is not None and stored.sealed is not None):
            return
        entries.append(Entry("p", self.published, self.now_ms, b"x"))
        self.published += 1

    def act(self) -> None:
        if not self.is_chaotic:
            return
        self.at(self.chance.randint(1, 150), self.act)
        if self.leader.is_dead and self.record is not None:
            self.elect()
        match self.chance.randrange(12):
            case 0:
                self.ask(SubscribeCall(self.new_id("sub"), "new", SubscriptionKind.STREAM, Start.LATEST))
            case 1:
                self.ask(UnsubscribeCall(self.new_id("unsub"), self.chance.choice(["audit", "new"])))
            case 2:
                self.ask(SplitCall(self.new_id("split"), max(1, self.partitions)))
            case 3 if self.chance.random() < 0.2:
                self.ask(DeleteCall(self.new_id("delete")))
                self.was_deleted = True
            case 4 if self.record is not None and self.record.is_migrating:
                self.ask(MigrationCall(OPERATION))

    def trouble_owners(self) -> None:
        if self.is_chaotic:
            self.downs[self.chance.randrange(3)] = self.now_ms + self.chance.choice([50, 400, 1_000])
            self.at(self.chance.randint(100, 1_000), self.trouble_owners)

    def between_effects(self, leader: Leader) -> None:
        if not self.is_chaotic or leader is not self.leader or self.chance.random() >= 0.06:
            return
        if self.chance.random() < 0.5:
            leader.kill()
        else:
            leader.freeze()
            self.at(self.chance.choice([20, 200, 1_000]), leader.thaw)
        self.at(self.chance.randint(0, 100), self.elect_again)

    def elect_again(self) -> None:
        if self.record is not None:
            self.elect()

    # the whole story --------------------------------------------------------------------------------------------------
    def live(self) -> None:
        self.at(self.chance.randint(0, 30), self.publish)
        self.elect()
        self.ask(MigrationCall(OPERATION))
        self.act()
        if self.trouble:
            self.at(self.chance.randint(0, 300), self.trouble_owners)
        self.run(CHAOS_MS)
        self.is_chaotic = False
        self.finish()
        self.check_end()

    def check_end(self) -> None:
        record = self.record
        if record is None:
            self.must(self.was_undone or self.was_deleted, "the topic is gone")
            if self.was_undone:
                regular = self.shelf.regular_entries
                self.must(set(regular) == set(self.parts()), "a partition was not released")
                self.must(sum(map(len, regular.values())) == self.published, "messages are lost")
            return
        self.must(not self.was_undone, "an undo was not finished")
        self.must(not record.is_migrating and record.migrated_from is not None, "it was not finished")
        stored = [self.shelf.segments[name_of(one)] for one in record.segments.values()]
        self.must(sum(len(one.entries) for one in stored) == self.published, "messages are lost")
        self.must(self.is_forced or not self.shelf.old_clients, "it was done under a client that cannot follow")
        subscriptions = {} if self.registry is None else self.registry.subscriptions
        asked = {call.name for one in self.askings.values() if isinstance(call := one.call, UnsubscribeCall)}
        wanted = {name for some in self.shelf.regular.values() for name in some}
        self.must(wanted - asked <= subscriptions.keys(), f"subscriptions are lost: {wanted - subscriptions.keys()}")
        for name in (wanted - asked) & {"work", "audit"}:
            is_shared = any(some.get(name) for some in self.shelf.regular.values())
            kind = SubscriptionKind.QUEUE if is_shared else SubscriptionKind.STREAM
            self.must(subscriptions[name].kind is kind, f"{name} is {subscriptions[name].kind}")


def run_migration(seed: int) -> Migration:
    world = Migration(seed)
    try:
        world.live()
    except Exception as error:
        shown = "\n".join(world.lines[-LINES_SHOWN:])
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{shown}", pytrace=not isinstance(error, Broken))
    return world


@pytest.mark.parametrize("part", seeds(SEEDS, 6))
def test_migrations_under_faults(part: range) -> None:
    for seed in part:
        run_migration(seed)


def test_simulation_reaches_all_outcomes() -> None:
    worlds = [run_migration(seed) for seed in range(60)]
    assert sum(world.record is not None for world in worlds) > 15
    assert sum(world.was_undone for world in worlds) > 8
    assert sum(world.was_deleted for world in worlds) > 3
    assert sum(len(world.leaders) for world in worlds) > 120
    assert sum(world.published for world in worlds) > 500
