"""A cursor rebuilt from its records equals the live one, however the changes were divided into records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import EARLIEST, Position
from anabranch.storage.cursor.ack_state import AckState
from anabranch.storage.cursor.cursor import Cursor
from anabranch.storage.cursor.state_codec import CursorDelta, CursorProperties, CursorSaved, decode, encode
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain

BATCH = 3
LENGTHS = ((2, 9), (6, 5000), (7, 12))
ALL = [Position(ledger, entry) for ledger, count in LENGTHS for entry in range(count)]
positions = st.one_of(st.sampled_from(ALL[:20]), st.sampled_from(ALL[-20:]), st.sampled_from(ALL))
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("ack", "ack", "cumulative", "seek")), positions, st.just(0)),
        st.tuples(st.sampled_from(("some", "cumulative-some")), positions, st.integers(1, 6)),
        st.tuples(st.sampled_from(("write", "properties", "snapshot")), st.just(EARLIEST), st.integers(0, 9)),
    ),
    max_size=40,
)


class Host:
    def __init__(self) -> None:
        self.chain = LedgerChain(
            ChainLedger(ledger, entries=count, messages=BATCH * count, sealed=ledger != 7) for ledger, count in LENGTHS
        )
        self.changes = 0

    def cursor_changed(self, cursor: Cursor) -> None:
        self.changes += 1

    async def flush_state(self) -> None:
        raise AssertionError("flush is not expected")

    async def messages_upto(self, p: Position) -> int:
        return BATCH * self.chain.ordinal(p)


def restored(saved: CursorSaved) -> Cursor:
    host = Host()
    state = AckState(host.chain)
    state.restore(saved.acks)
    return Cursor(host, saved.name, state, saved.properties, consumed_messages=saved.consumed_messages)


def written(cursor: Cursor, replica: Cursor) -> None:
    for record in decode(encode(cursor.take_changes())):
        if isinstance(record, CursorDelta):
            replica.apply(record)
        else:
            assert isinstance(record, CursorProperties)
            replica.apply_properties(record.properties)
    assert cursor.take_changes() == []


@given(steps)
def test_replay_equals_live(plan: list[tuple[str, Position, int]]) -> None:
    host = Host()
    live = Cursor(host, "s", AckState(host.chain), {}, consumed_messages=0)
    replica = restored(live.saved())
    for kind, p, extra in plan:
        match kind:
            case "ack":
                live.ack(p, BATCH)
            case "some":
                live.ack(p, BATCH, [extra], BATCH)
            case "cumulative":
                live.ack_cumulative(p)
            case "cumulative-some":
                live.ack_cumulative(p, None, [extra])
            case "seek":
                live.seek(p)
            case "properties":
                live.properties = {"n": str(extra)}
            case "snapshot":
                (record,) = decode(encode([live.saved()]))
                live.forget_changes()
                assert isinstance(record, CursorSaved)
                replica = restored(record)
            case _:
                written(live, replica)
    written(live, replica)
    assert (replica.mark_delete, replica.state.holes, replica.properties) == (
        live.mark_delete,
        live.state.holes,
        live.properties,
    )
    assert replica.consumed_messages == live.consumed_messages
    assert [p for p in ALL if replica.is_acked(p)] == [p for p in ALL if live.is_acked(p)]
    assert [replica.ack_set(p) for p in ALL] == [live.ack_set(p) for p in ALL]
