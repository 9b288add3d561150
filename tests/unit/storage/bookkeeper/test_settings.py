"""The storage URL."""

from __future__ import annotations

import pytest

from anabranch.storage.bookkeeper.ledger_metadata import Quorums
from anabranch.storage.bookkeeper.settings import BadStorageUrl, BookKeeperUrl, parse_storage_url
from anabranch.zookeeper.address import Server


def test_url_with_all_options() -> None:
    url = "bookkeeper://zk1:2181,zk2/a/ledgers?ensemble=5&write-quorum=5&ack-quorum=3&ensemble-min=3&timeout-ms=2500"
    url += "&racks=b1:3181@r1"
    assert parse_storage_url(url) == BookKeeperUrl(
        (Server("zk1", 2181), Server("zk2", 2181)),
        "/a/ledgers",
        Quorums(5, 5, 3),
        3,
        2.5,
        racks={"b1:3181": "r1"},
    )


def test_defaults_are_three_copies_of_which_two_confirm() -> None:
    found = parse_storage_url("bookkeeper://zk:2181/ledgers")
    assert (found.quorums, found.request_s, found.racks) == (Quorums(3, 3, 2), 5.0, {})
    assert found.ensemble_min == 3
    assert parse_storage_url("bookkeeper://zk/ledgers?ensemble=1").quorums == Quorums(1, 1, 1)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("files:///data", "is not a storage URL; write bookkeeper://"),
        ("bookkeeper://zk:2181", "is not a storage URL"),
        ("bookkeeper:///ledgers", "is not a storage URL"),
        ("bookkeeper://zk:port/ledgers", "is not a ZooKeeper server"),
        ("bookkeeper://zk/ledgers?ensemble=three", "ensemble=three"),
        ("bookkeeper://zk/ledgers?ensemble=0", "is not a positive number"),
        ("bookkeeper://zk/ledgers?ensemble=3&write-quorum=2", "must be equal"),
        ("bookkeeper://zk/ledgers?ack-quorum=4", "quorums must obey"),
        ("bookkeeper://zk/ledgers?ensemble-min=1", "must be between ack-quorum=2 and ensemble=3"),
        ("bookkeeper://zk/ledgers?ensemble-min=4", "must be between ack-quorum=2 and ensemble=3"),
        ("bookkeeper://zk/ledgers?emsemble=3", "unknown options of a storage URL: emsemble"),
        ("bookkeeper://zk/ledgers?racks=b1", "is not a list of ID@RACK"),
    ],
)
def test_other_urls_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(BadStorageUrl, match=complaint):
        parse_storage_url(url)
