"""What a broker says of its cluster from the table and the cards it was shown."""

from __future__ import annotations

from dataclasses import replace

from anabranch.cluster.broker_info import BrokerInfo
from anabranch.cluster.cluster_view import ClusterView
from anabranch.cluster.slot_table import BrokerIncarnation, Table
from anabranch.cluster.slots import SLOTS, slot_of

TOPIC = "persistent://public/default/t"
ONE, TWO = BrokerIncarnation("one", 1), BrokerIncarnation("two", 1)


def card(seat: BrokerIncarnation, *, volume_id: str = "v", is_draining: bool = False) -> BrokerInfo:
    return BrokerInfo(
        broker=seat.broker,
        incarnation=seat.incarnation,
        service_url="pulsar://h:1",
        http_url="http://h:2",
        volume_id=volume_id,
        version="1",
        started_ms=0,
        is_draining=is_draining,
    )


def view(table: Table, *cards: BrokerInfo) -> ClusterView:
    found = ClusterView()
    found.note_table(table)
    found.cards = {one.broker: one for one in cards}
    return found


def held(seat: BrokerIncarnation, serial: int = 1) -> Table:
    return replace(Table().with_holders(dict.fromkeys(range(SLOTS), seat)), serial=serial)


def test_a_topic_is_where_the_holder_of_its_slot_is_registered() -> None:
    known = view(held(ONE), card(ONE), card(TWO))
    assert known.card_of(TOPIC) == card(ONE)
    assert (known.ownership_epoch(TOPIC, ONE), known.ownership_epoch(TOPIC, TWO)) == (1, None)
    assert known.owner_epoch(TOPIC) == 1 and not known.is_moving(TOPIC) and not known.has_free_slots


def test_nobody_serves_what_an_earlier_life_held_or_a_dead_one_holds() -> None:
    assert view(held(ONE), card(BrokerIncarnation("one", 2))).card_of(TOPIC) is None
    assert view(held(ONE)).card_of(TOPIC) is None
    assert view(held(ONE).with_dead([ONE]), card(ONE)).card_of(TOPIC) is None
    assert view(Table(), card(ONE)).card_of(TOPIC) is None and view(Table()).has_free_slots


def test_an_older_table_comes_too_late() -> None:
    known = view(held(TWO, serial=5), card(ONE), card(TWO))
    known.note_table(held(ONE, serial=4))
    assert known.card_of(TOPIC) == card(TWO)
    known.note_table(held(TWO, serial=5).with_heirs({slot_of(TOPIC): ONE}))
    assert known.is_moving(TOPIC)


def test_who_else_could_take_slots_and_who_is_a_stranger() -> None:
    known = view(Table(), card(ONE), card(TWO, is_draining=True))
    assert known.are_others_able("two") and not known.are_others_able("one")
    assert known.stranger("v") is None
    found = view(Table(), card(ONE), card(TWO, volume_id="w")).stranger("v")
    assert found is not None and found.broker == "two"
