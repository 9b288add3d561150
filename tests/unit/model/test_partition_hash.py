"""Partition hashes against what stock clients do, and how the hash of a topic is found."""

from __future__ import annotations

import pytest

from anabranch.model.keyhash import boost_1_80_string_hash
from anabranch.model.partition_hash import HashFinding, PartitionHash, Verdict, find_partition_hash

KEYS = [f"customer-{number}" for number in range(40)]


# The partition that the stock Python client 3.13 chose among 64.
@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("a", 28),
        ("ab", 54),
        ("abc", 61),
        ("abcd", 34),
        ("abcde", 5),
        ("key-7", 58),
        ("customer", 60),
        ("customer-17", 42),
        ("x" * 40, 19),
        ("éè", 46),
        ("日本語", 9),
        ("0123456789abcdef", 44),
        ("order-😀", 2),
    ],
)
def test_boost_chooses_the_partition_of_the_stock_client(key: str, partition: int) -> None:
    assert PartitionHash.BOOST.partition_of(key, 64) == partition


def test_older_boost_combines_signed_characters() -> None:
    assert boost_1_80_string_hash(b"") == 0
    assert boost_1_80_string_hash(b"\xe9") != boost_1_80_string_hash(b"\x69")
    assert PartitionHash.BOOST_1_80.of("a") == boost_1_80_string_hash(b"a") != PartitionHash.BOOST.of("a")


def test_java_and_murmur_agree_with_their_vectors() -> None:
    assert PartitionHash.JAVA_STRING.of("my-key") == 1086286526
    assert PartitionHash.MURMUR3.of("my-key") == 1844492593


@pytest.mark.parametrize("one", list(PartitionHash))
def test_a_key_of_bytes_is_hashed_as_base64(one: PartitionHash) -> None:
    assert one.of(b"\xff\xfe\xfd") == one.of("//79")


def routed(one: PartitionHash, count: int, keys: list[str] = KEYS) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for key in keys:
        found.setdefault(one.partition_of(key, count), []).append(key)
    return found


@pytest.mark.parametrize("count", [2, 3, 8, 64])
@pytest.mark.parametrize("one", list(PartitionHash))
def test_the_hash_of_all_keys_is_found(one: PartitionHash, count: int) -> None:
    finding = find_partition_hash(routed(one, count), [count])
    assert (finding.verdict, finding.partition_hash, finding.keys) == (Verdict.FOUND, one, len(KEYS))
    assert finding.matches[one] == len(KEYS) and min(finding.matches.values()) < len(KEYS)


def test_few_keys_are_not_enough() -> None:
    finding = find_partition_hash(routed(PartitionHash.JAVA_STRING, 4, KEYS[:3]), [4])
    assert (finding.verdict, finding.partition_hash) == (Verdict.UNKNOWN, None)


@pytest.mark.parametrize(("samples", "counts"), [({}, [4]), ({0: []}, [4]), ({0: ["a", "b"]}, [1]), ({0: ["a"]}, [])])
def test_without_keys_or_with_one_partition_nothing_is_known(samples: dict[int, list[str]], counts: list[int]) -> None:
    finding = find_partition_hash(samples, counts)
    assert finding == HashFinding(Verdict.UNKNOWN, keys=sum(map(len, samples.values())))


def test_two_producers_with_different_hashes_are_a_mixture_with_a_leading_hash() -> None:
    samples = routed(PartitionHash.JAVA_STRING, 8, KEYS[:30])
    for partition, keys in routed(PartitionHash.BOOST, 8, KEYS[30:]).items():
        samples.setdefault(partition, []).extend(keys)
    finding = find_partition_hash(samples, [8])
    assert (finding.verdict, finding.partition_hash) == (Verdict.MIXED, PartitionHash.JAVA_STRING)
    assert 30 <= finding.matches[PartitionHash.JAVA_STRING] < 40


def test_a_router_of_the_application_is_a_mixture_without_a_leading_hash() -> None:
    samples = {number % 8: KEYS[number::8] for number in range(8)}
    finding = find_partition_hash(samples, [8])
    assert (finding.verdict, finding.partition_hash) == (Verdict.MIXED, None)


def test_keys_from_before_the_growth_count_for_the_earlier_number() -> None:
    samples = routed(PartitionHash.BOOST, 4, KEYS[:20])
    for partition, keys in routed(PartitionHash.BOOST, 6, KEYS[20:]).items():
        samples.setdefault(partition, []).extend(keys)
    assert find_partition_hash(samples, [6]).verdict is Verdict.MIXED
    finding = find_partition_hash(samples, [6, 4])
    assert (finding.verdict, finding.partition_hash) == (Verdict.FOUND, PartitionHash.BOOST)
