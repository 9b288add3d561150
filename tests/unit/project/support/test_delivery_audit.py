"""The delivery audit finds lost, repeated and misordered messages."""

from __future__ import annotations

from tests.support.traffic.delivery_audit import by_stream, decode, encode, judge


def test_a_clean_run_holds() -> None:
    verdict = judge({"a": [0, 1, 2], "b": [0]}, {"a": [0, 1, 2], "b": [0]})
    assert verdict.holds
    assert (verdict.acknowledged, verdict.read, verdict.repeated) == (4, 4, 0)


def test_a_missing_acknowledged_message_is_lost() -> None:
    verdict = judge({"a": [0, 1, 2], "b": [0]}, {"a": [0, 2]})
    assert verdict.lost == (("a", 1), ("b", 0))
    assert not verdict.holds
    assert "a#1" in str(verdict)


def test_a_message_read_but_never_acknowledged_is_no_fault() -> None:
    assert judge({"a": [0]}, {"a": [0, 1]}).holds


def test_a_block_sent_again_is_repeated_not_out_of_order() -> None:
    verdict = judge({"a": [0, 1, 2, 3]}, {"a": [0, 1, 2, 1, 2, 3]})
    assert verdict.holds
    assert verdict.repeated == 2


def test_a_first_sighting_after_a_higher_number_is_out_of_order() -> None:
    verdict = judge({"a": [0, 1, 2]}, {"a": [0, 2, 1]})
    assert verdict.out_of_order == (("a", 1),)
    assert judge({"a": [0, 1, 2]}, {"a": [0, 2, 1]}, ordered=False).holds


def test_payloads_carry_their_number() -> None:
    payload = encode("key-7", 42, size=100)
    assert len(payload) == 100
    assert decode(payload) == ("key-7", 42)
    assert by_stream([decode(payload), ("x", 1), ("key-7", 43)]) == {"key-7": [42, 43], "x": [1]}
