"""Pages of messages over several logs: order, places, logs that gave only a part, and that nothing is lost or twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.admin.views.message_page import FIRST, Place, merged, places_of
from anabranch.model.errors import BadRequest


def log_of(*times: int, more: bool = False, at: str = "7:0:0") -> dict[str, Any]:
    messages = [{"id": f"7:{number}", "publishTimeMs": time} for number, time in enumerate(times)]
    return {"at": at, "messages": messages, "more": more}


def test_messages_of_logs_are_merged_by_time_and_places_are_behind_them() -> None:
    found = merged({"0": log_of(1, 5), "3": log_of(2, 3, 9)}, [{"segment": 0}, {"segment": 3}], 3)
    assert [(one["segment"], one["publishTimeMs"]) for one in found["messages"]] == [(0, 1), (3, 2), (3, 3)]
    assert found["next"] == "0@7:1:0,3@7:2:0" and not found["isEnd"]


def test_log_that_has_more_than_it_gave_ends_the_page() -> None:
    found = merged({"0": log_of(1, more=True), "1": log_of(2, 3)}, [{}, {}], 10)
    assert [one["publishTimeMs"] for one in found["messages"]] == [1], "its next message may be older than 2"
    assert found["next"] == "0@7:1:0,1@7:0:0" and not found["isEnd"]


def test_end_has_places_too_so_that_later_messages_are_found() -> None:
    assert merged({"0": log_of(at="9:4:2")}, [{}], 10) == {"messages": [], "next": "0@9:4:2", "isEnd": True}


def test_message_of_a_batch_is_followed_by_its_next_one() -> None:
    assert [str(Place.after(one)) for one in ("5:3:0", "5:3", "5:3:9")] == ["5:3:1", "5:4:0", "5:3:10"]
    assert places_of("2@5:3:1,0@0:0") == {"2": Place(5, 3, 1), "0": FIRST}
    assert places_of("") == {}


@pytest.mark.parametrize(
    "text", ["x", "1@", "1@2", "a@1:2", "1@1:2:3:4", "1@-1:0", "1@1:\u0662", f"1@{'9' * 20}:0", ","]
)
def test_bad_place_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        places_of(text)


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 4)
)
def test_pages_have_every_message_once_in_the_order_of_its_log(
    times: list[list[int]], count: int, given_at_once: int
) -> None:
    after, seen, pages = "", list[tuple[int, str]](), 0
    while True:
        starts, found = places_of(after), {}
        for label, log in enumerate(times):
            first = starts.get(str(label), FIRST).entry
            some = [
                {"id": f"7:{n}", "publishTimeMs": log[n]} for n in range(first, min(first + given_at_once, len(log)))
            ]
            found[str(label)] = {"at": f"7:{first}:0", "messages": some, "more": first + len(some) < len(log)}
        page = merged(found, [{"segment": label} for label in range(len(times))], count)
        seen += [(one["segment"], one["id"]) for one in page["messages"]]
        pages, after = pages + 1, page["next"]
        assert page["isEnd"] or page["messages"], "a page without messages is the end"
        if page["isEnd"]:
            break
    for label, log in enumerate(times):
        assert [one for segment, one in seen if segment == label] == [f"7:{n}" for n in range(len(log))]
