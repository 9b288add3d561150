"""docs/reference/conformance.md: which feature was run with which client of Apache Pulsar, by which test.

    python -m scripts.conformance_reference > docs/reference/conformance.md

`ROWS` names the tests; a test of the project fails if one of them does not exist or the page is not what this writes.
Versions are read from the files that pin the clients.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "tests/services/builds"

PYTHON, ASYNCIO, JAVA, GO = "Python", "Python asyncio", "Java", "Go"
STOCK = "tests/e2e/stock/"
FILES = {JAVA: "tests/interop/test_java_v4.py", GO: "tests/interop/test_go.py", ASYNCIO: f"{STOCK}test_asyncio.py"}
CLIENTS = (PYTHON, ASYNCIO, JAVA, GO)

ROWS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "batches and compression",
        {PYTHON: "producing/test_producers.py::test_compression", GO: "test_batches_with_compression"},
    ),
    ("chunks", {PYTHON: "producing/test_large.py::test_chunked_message", JAVA: "test_chunks", GO: "test_chunks"}),
    (
        "partitioned topics",
        {PYTHON: "producing/test_partitions.py::test_round_robin_uses_all_partitions"}
        | {ASYNCIO: "test_partitions", GO: "test_partitions"},
    ),
    ("deduplication", {PYTHON: "producing/test_dedup.py::test_repeated_sequence_ids_are_dropped"}),
    ("exclusive producers", {PYTHON: "producing/test_producers.py::test_fencing_takes_over"}),
    (
        "schema: bytes",
        {PYTHON: "producing/test_schemas.py::test_bytes_have_no_schema"}
        | {JAVA: "test_bytes_schema", GO: "test_bytes_schema_has_a_version_that_rest_shows"},
    ),
    (
        "schema: JSON and Avro records",
        {PYTHON: "producing/test_schemas.py::test_records_with_everything"}
        | {ASYNCIO: "producing/test_schemas.py::test_the_asyncio_client"}
        | {JAVA: "test_records", GO: "test_schema_is_registered_and_read_back"},
    ),
    (
        "schema: renamed record, strategies",
        {PYTHON: "producing/test_schemas.py::test_renamed_record_class_is_compatible"},
    ),
    (
        "Exclusive",
        {PYTHON: "consuming/test_subscriptions.py::test_exclusive_refuses_a_second_consumer"}
        | {ASYNCIO: "test_exclusive_is_busy", GO: "test_exclusive"},
    ),
    (
        "Failover",
        {PYTHON: "consuming/test_subscriptions.py::test_failover_takes_over_without_a_gap", GO: "test_failover"},
    ),
    (
        "Key_Shared",
        {PYTHON: "consuming/test_key_shared.py::test_join_keeps_order_per_key", GO: "test_key_shared"},
    ),
    (
        "delayed delivery, Shared and Key_Shared",
        {PYTHON: "consuming/test_redelivery.py::test_deliver_after_lets_the_next_message_pass"}
        | {JAVA: "test_delayed_message_is_put_aside", GO: "test_delayed_message_is_put_aside"},
    ),
    (
        "negative acknowledgement",
        {PYTHON: "consuming/test_redelivery.py::test_nack_brings_one_message_back"}
        | {ASYNCIO: "test_negative_ack", JAVA: "test_nack", GO: "test_nack"},
    ),
    (
        "dead letters",
        {PYTHON: "consuming/test_redelivery.py::test_dead_letter_topic_gets_what_fails_too_often"}
        | {JAVA: "test_dead_letters", GO: "test_dead_letters"},
    ),
    ("batch index acknowledgement", {PYTHON: "consuming/test_acks.py::test_batch_index_acks_individual"}),
    (
        "seek",
        {PYTHON: "consuming/test_seek.py::test_seek_to_an_id"}
        | {ASYNCIO: "test_seek_and_last_id", JAVA: "test_seek", GO: "test_seek"},
    ),
    (
        "reader",
        {PYTHON: "consuming/test_readers.py::test_reader_from_earliest"}
        | {ASYNCIO: "test_reader", JAVA: "test_reader", GO: "test_reader"},
    ),
    (
        "pattern of a missing namespace",
        {JAVA: "test_pattern_of_a_missing_namespace"}
        | {GO: "test_pattern_of_a_missing_namespace_finds_topics_when_it_is_created"},
    ),
    (
        "transactions: told that there are none",
        dict.fromkeys((JAVA, GO), "test_client_with_transactions_is_told_that_there_are_none"),
    ),
    ("wrong credentials are told at once", {PYTHON: "test_security.py::test_bad_credentials"}),
    (
        "anonymous role",
        {PYTHON: "test_security.py::test_client_without_known_method_has_the_anonymous_role"},
    ),
    ("admin client", {GO: "test_admin_client_switches_topic_creation_off"}),
)
OTHERS = (
    ("Java V5 (scalable topics)", "pulsar_v5", "pulsar-client-v5", "tests/interop/test_java_v5.py"),
    ("`pulsar-admin`, every verb", "pulsar_admin", "pulsar-client-tools", "tests/e2e/rest/test_pulsar_admin.py"),
)


def test_of(client: str, name: str) -> str:
    """Path and name of a test: `file::function`."""
    if "::" in name:
        return f"{STOCK}{name}"
    return f"{FILES[client]}::{name}"


def named_tests() -> list[str]:
    return sorted({test_of(client, name) for _, row in ROWS for client, name in row.items()})


def _pom_version(build: str, artifact: str) -> str:
    text = (BUILDS / build / "pom.xml").read_text()
    found = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>([^<]+)<", text)
    assert found is not None
    return found[1]


def versions() -> dict[str, str]:
    wheel = re.search(r"^pulsar-client==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    module = re.search(r"pulsar-client-go v(\S+)", (BUILDS / "pulsar_go/go.mod").read_text())
    assert wheel is not None
    assert module is not None
    java = _pom_version("pulsar_v5", "pulsar-client-v5")
    return {PYTHON: wheel[1], ASYNCIO: wheel[1], JAVA: java, GO: module[1]}


def page() -> str:
    known = versions()
    lines = [
        "# Conformance",
        "",
        "Clients of Apache Pulsar that the tests run unchanged on our broker, and what each does there. A name is the",
        "test; an empty cell was not run with that client. `python -m scripts.conformance_reference` writes this page.",
        "",
        "| feature | " + " | ".join(f"{client} {known[client]}" for client in CLIENTS) + " |",
        "|" + "---|" * (len(CLIENTS) + 1),
    ]
    for feature, row in ROWS:
        cells = [f"`{row[client].rpartition('::')[2]}`" if client in row else "" for client in CLIENTS]
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    lines += ["", "| further client | version | tests |", "|---|---|---|"]
    lines += [f"| {name} | {_pom_version(build, artifact)} | `{file}` |" for name, build, artifact, file in OTHERS]
    lines += ["", f"Tests of Python are below `{STOCK}`, of Java in `{FILES[JAVA]}`, of Go in `{FILES[GO]}`."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
