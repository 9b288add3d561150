"""Parameters of the scalable topic routes: filters, ring positions, ids, topic names."""

from __future__ import annotations

import pytest

from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import Request
from anabranch.rest.params import topic_of
from anabranch.rest.routes.scalable_topics import BadFilter, parse_filters, parse_ids, parse_points


def test_filters_are_pairs() -> None:
    assert parse_filters(["a=1", "b=", "c=x=y", "a=1"]) == {"a": "1", "b": "", "c": "x=y"}


@pytest.mark.parametrize("texts", [["a"], ["=1"], [""], ["a=1", "a=2"]])
def test_bad_filters(texts: list[str]) -> None:
    with pytest.raises(BadFilter):
        parse_filters(texts)


def test_points_are_hexadecimal() -> None:
    assert parse_points("4000,c000, FFFF") == [0x4000, 0xC000, 0xFFFF]


@pytest.mark.parametrize("text", ["", "x", "4000,", "10000", "-1", "4000;8000"])
def test_bad_points(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_points(text)


def test_ids() -> None:
    assert parse_ids("3, 1,2") == [3, 1, 2]


@pytest.mark.parametrize("text", ["", "1,", "a", "-1,2", "1.5"])
def test_bad_ids(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_ids(text)


@pytest.mark.parametrize(
    ("path", "params", "topic"),
    [
        ("/admin/v2/scalable/t/n/a%2Fb", {"topic": "a/b"}, "topic://t/n/a/b"),
        ("/admin/v2/segments/t/n/x/0000-ffff-0", {"topic": "x", "descriptor": "0000-ffff-0"}, "topic://t/n/x"),
        ("/admin/v2/schemas/t/n/x/schema", {"topic": "x"}, "persistent://t/n/x"),
        ("/admin/v2/non-persistent/t/n/x", {"topic": "x", "domain": "non-persistent"}, "non-persistent://t/n/x"),
    ],
)
def test_topic_name_from_path(path: str, params: dict[str, str], topic: str) -> None:
    assert str(topic_of(Request("GET", path, params={"tenant": "t", "namespace": "n", **params}))) == topic


def test_repeated_query_parameters() -> None:
    request = Request("GET", "/", query={"a": "2"}, query_pairs=(("a", "1"), ("b", "x"), ("a", "2")))
    assert (request.texts("a"), request.texts("c")) == (["1", "2"], [])
