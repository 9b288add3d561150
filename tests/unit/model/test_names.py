"""Topic, namespace, subscription and segment names."""

from __future__ import annotations

import pytest

from anabranch.model.errors import BadName
from anabranch.model.names import (
    NAME_BYTES_MAX,
    Domain,
    SegmentDescriptor,
    TopicName,
    check_subscription_name,
    encode_component,
    parse_namespace,
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("x", "persistent://public/default/x"),
        ("t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x", "persistent://t/n/x"),
        ("PERSISTENT://t/n/X", "persistent://t/n/X"),
        ("non-persistent://t/n/x", "non-persistent://t/n/x"),
        ("persistent://t/n/a/b", "persistent://t/n/a/b"),
        ("topic://t/n/a/b/c", "topic://t/n/a/b/c"),
        ("segment://t/n/a/b/0-7FFF-01", "segment://t/n/a/b/0000-7fff-1"),
        ("persistent://t=1/n.a:b_c-d/日本語 😀%2F", "persistent://t=1/n.a:b_c-d/日本語 😀%2F"),
    ],
)
def test_parse_gives_the_full_name(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name
    assert hash(TopicName.parse(full)) == hash(name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\t",
        " x",
        "x ",
        "a/b",
        "a/b/c/d",
        "x/",
        "/x",
        "t//x",
        "persistent://",
        "persistent://t/n",
        "persistent://t/n/",
        "persistent://t/n//x",
        "persistent://t/n/a//b",
        "persistent://t/n/a/",
        "persistent:///n/x",
        "persistent://t//x",
        "persistent://t t/n/x",
        "persistent://tä/n/x",
        "persistent://../n/x",
        "persistent://t/./x",
        "persistent://t/n/..",
        "other://t/n/x",
        "://t/n/x",
        "a\x00b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "\ud800",
        "segment://t/n/0000-ffff-0",
        "segment://t/n/x/ffff-0000-0",
        "segment://t/n/x/0000-10000-0",
        "segment://t/n/x/0000-ffff",
        "segment://t/n/x/0000-ffff--1",
        "segment://t/n/x/0000-ffff-0-1",
        "segment://t/n/x/zzzz-ffff-0",
        "segment://t/n/x/0000-ffff-٣",
        "x" * (NAME_BYTES_MAX + 1),
        "é" * (NAME_BYTES_MAX // 2),  # with its domain and namespace too long in bytes, not in characters
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(BadName) as caught:
        TopicName.parse(text)
    assert caught.value.code == "bad-name"
    assert len(str(caught.value)) > 10
    assert str(caught.value).isprintable()


def test_longest_name_is_allowed() -> None:
    prefix = "persistent://public/default/"
    text = prefix + "x" * (NAME_BYTES_MAX - len(prefix))
    assert str(TopicName.parse(text)) == text
    with pytest.raises(BadName):
        TopicName.parse(text + "x")


@pytest.mark.parametrize(
    ("local", "index", "base"),
    [
        ("x", -1, "x"),
        ("x-partition-0", 0, "x"),
        ("x-partition-12", 12, "x"),
        ("x-partition-01", -1, "x-partition-01"),
        ("x-partition--1", -1, "x-partition--1"),
        ("x-partition-", -1, "x-partition-"),
        ("-partition-1", -1, "-partition-1"),
        ("x-partition-2147483648", -1, "x-partition-2147483648"),
        ("x-partition-1-partition-2", 2, "x-partition-1"),
        ("x-partition-٣", -1, "x-partition-٣"),
    ],
)
def test_partitions(local: str, index: int, base: str) -> None:
    name = TopicName.parse(f"persistent://t/n/{local}")
    assert name.partition_index == index
    assert str(name.base) == f"persistent://t/n/{base}"


def test_partition_names_a_partition() -> None:
    name = TopicName.parse("non-persistent://t/n/x")
    assert str(name.partition(7)) == "non-persistent://t/n/x-partition-7"
    assert name.partition(7).base == name


def test_scalable_names_have_no_partitions() -> None:
    assert TopicName.parse("topic://t/n/x-partition-1").partition_index == -1


def test_parts() -> None:
    name = TopicName.parse("non-persistent://t/n/x")
    assert (name.domain, name.tenant, name.namespace, name.local) == (Domain.NON_PERSISTENT, "t", "n", "x")
    assert name.namespace_path == "t/n"
    assert not name.is_persistent
    assert TopicName.parse("x").is_persistent
    assert name == TopicName.from_parts("non-persistent", "t", "n", "x")


@pytest.mark.parametrize(
    ("local", "encoded"),
    [
        ("a b", "a+b"),
        ("a/b", "a%2Fb"),
        ("~*-_.9", "%7E*-_.9"),
        ("ü", "%C3%BC"),
        ("a+b%", "a%2Bb%25"),
        ("😀", "%F0%9F%98%80"),
    ],
)
def test_encoding_is_javas_and_comes_back(local: str, encoded: str) -> None:
    name = TopicName.from_parts("persistent", "t", "n", local)
    assert name.encoded_local == encoded == encode_component(local)
    assert TopicName.from_rest("persistent", "t", "n", encoded) == name


def test_rest_accepts_percent_twenty_and_refuses_broken_utf8() -> None:
    assert TopicName.from_rest("persistent", "t", "n", "a%20b").local == "a b"
    with pytest.raises(BadName):
        TopicName.from_rest("persistent", "t", "n", "%ff")
    with pytest.raises(BadName):
        TopicName.from_rest("persistent", "t", "n", "%00")
    with pytest.raises(BadName):
        TopicName.from_rest("persistent", "t", "n", "..")


def test_segments_and_their_topic() -> None:
    topic = TopicName.parse("topic://public/default/a/b")
    segment = topic.segment_name(SegmentDescriptor(0, 0x7FFF, 1))
    assert str(segment) == "segment://public/default/a/b/0000-7fff-1"
    assert segment.segment == SegmentDescriptor(0, 0x7FFF, 1)
    assert segment.scalable == topic == topic.scalable
    assert segment.encoded_local == "a%2Fb/0000-7fff-1"
    assert topic.segment is None
    assert str(TopicName.parse("persistent://t/n/x-partition-3").scalable) == "topic://t/n/x"


def test_namespaces() -> None:
    assert parse_namespace("public/default") == ("public", "default")
    for bad in ("", "public", "a/b/c", "a/", "/b", "a b/c"):
        with pytest.raises(BadName):
            parse_namespace(bad)


def test_subscription_names() -> None:
    assert check_subscription_name("my sub/ü%") == "my sub/ü%"
    for bad in ("", "  ", "a\x01", "x" * (NAME_BYTES_MAX + 1)):
        with pytest.raises(BadName):
            check_subscription_name(bad)
