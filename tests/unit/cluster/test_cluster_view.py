"""What a broker says of its cluster from the table and the cards it was shown."""

from __future__ import annotations

from dataclasses import replace

from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.cluster_view import ClusterView
from anabranch.cluster.slot_table import Table
from anabranch.cluster.slots import SLOTS, slot_of
from anabranch.model.broker_incarnation import BrokerIncarnation

TOPIC = "persistent://public/default/t"
ONE, TWO = BrokerIncarnation("one", 1), BrokerIncarnation("two", 1)


def info(incarnation: BrokerIncarnation, *, volume_id: str = "v", is_draining: bool = False) -> BrokerInfo:
    return BrokerInfo(
        broker=incarnation.broker,
        incarnation=incarnation.number,
        service_url="pulsar://h:1",
        http_url="http://h:2",
        volume_id=volume_id,
        version="1",
        started_ms=0,
        is_draining=is_draining,
    )


def view(table: Table, *brokers: BrokerInfo) -> ClusterView:
    found = ClusterView()
    found.note_table(table)
    found.brokers = {one.broker: one for one in brokers}
    return found


def held(incarnation: BrokerIncarnation, serial: int = 1) -> Table:
    return replace(Table().with_holders(dict.fromkeys(range(SLOTS), incarnation)), serial=serial)


def test_a_topic_is_where_the_holder_of_its_slot_is_registered() -> None:
    known = view(held(ONE), info(ONE), info(TWO))
    assert known.owner_info(TOPIC) == info(ONE)
    assert (known.ownership_epoch(TOPIC, ONE), known.ownership_epoch(TOPIC, TWO)) == (1, None)
    assert known.owner_epoch(TOPIC) == 1 and not known.is_moving(TOPIC) and not known.has_free_slots


def test_slots_of_dead_or_earlier_incarnations_have_no_owner() -> None:
    assert view(held(ONE), info(BrokerIncarnation("one", 2))).owner_info(TOPIC) is None
    assert view(held(ONE)).owner_info(TOPIC) is None
    assert view(held(ONE).with_dead([ONE]), info(ONE)).owner_info(TOPIC) is None
    assert view(Table(), info(ONE)).owner_info(TOPIC) is None and view(Table()).has_free_slots


def test_older_table_is_ignored() -> None:
    known = view(held(TWO, serial=5), info(ONE), info(TWO))
    known.note_table(held(ONE, serial=4))
    assert known.owner_info(TOPIC) == info(TWO)
    known.note_table(held(TWO, serial=5).with_next_holders({slot_of(TOPIC): ONE}))
    assert known.is_moving(TOPIC)


def test_finds_other_able_brokers_and_other_volumes() -> None:
    known = view(Table(), info(ONE), info(TWO, is_draining=True))
    assert known.are_others_able("two") and not known.are_others_able("one")
    assert known.broker_on_other_volume("v") is None
    found = view(Table(), info(ONE), info(TWO, volume_id="w")).broker_on_other_volume("v")
    assert found is not None and found.broker == "two"
