"""Arguments with which applications open producers and consumers: checked, and turned into options.

Raises BadOption, and BadName for names.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from anabranch.client.arguments import check_optional, check_properties, check_type, check_whole
from anabranch.client.config import DeadLetter, Seconds, seconds
from anabranch.client.consumer.namespace_topics import NamespaceTopicsSpec
from anabranch.client.encryption.options import CryptoFailure, Decryption, check_decryption, check_encryption
from anabranch.client.errors import BadOption
from anabranch.client.schema.schema import Schema, schema_of
from anabranch.model.names import Domain, TopicName, check_subscription_name, parse_namespace
from anabranch.model.partition_hash import PartitionHash
from anabranch.runtime.chance import secret_bytes
from anabranch.runtime.credentials import BadTlsFile, Tls, tls_context

Start = Literal["earliest", "latest"]


def consumer_options(
    subscription: str,
    start: Start,
    name: str | None,
    prefetch: int,
    ack_group_time: Seconds,
    properties: Mapping[str, str] | None,
    timeout_s: float,
    schema: Schema | type | None,
    decryption: Decryption | None,
) -> dict[str, Any]:
    """What consumers of every kind have."""
    if start not in ("earliest", "latest"):
        raise BadOption(f"start must be 'earliest' or 'latest', not {start!r}")
    check_type(subscription, str, "subscription", "text")
    check_optional(name, str, "name", "text")
    check_whole(prefetch, "prefetch", 1)
    check_properties(properties)
    check_decryption(decryption)
    return {
        "subscription": check_subscription_name(subscription),
        "name": name or new_name("consumer"),
        "from_earliest": start == "earliest",
        "prefetch": prefetch,
        "ack_group_s": seconds(ack_group_time, "ack_group_time"),
        "operation_timeout_s": timeout_s,
        "properties": properties or {},
        "schema": schema_of(schema),
        "decryption": decryption,
    }


def check_dead_letter(dead_letter: DeadLetter | None, decryption: Decryption | None) -> None:
    """A message that was encrypted must not be stored in plain text, nor without its keys."""
    check_optional(dead_letter, DeadLetter, "dead_letter", "a DeadLetter")
    if dead_letter is None:
        return
    check_encryption(dead_letter.encryption, "DeadLetter.encryption")
    if decryption is not None and dead_letter.encryption is None:
        raise BadOption("with decryption=, dead_letter needs DeadLetter(encryption=…): it would store plain text")
    if decryption is not None and decryption.on_failure is CryptoFailure.DELIVER:
        raise BadOption("dead_letter and on_failure='deliver' exclude each other: it would lose the keys of a message")


def checked_topics(topic: str | Sequence[str]) -> tuple[TopicName, ...]:
    check_type(topic, Iterable, "topic", "text like 'topic://public/default/orders', or a list of such texts")
    names = [topic] if isinstance(topic, str) else list(topic)
    topics = tuple(dict.fromkeys(map(checked_topic, names)))
    if not topics:
        raise BadOption("a consumer needs at least one topic")
    return topics


def topics_or_namespace(
    topic: str | Sequence[str] | None, namespace: str | None, topic_properties: Mapping[str, str] | None
) -> tuple[tuple[TopicName, ...], dict[str, Any]]:
    """The topics of a consumer, and the option that names a namespace instead."""
    if (topic is None) == (namespace is None):
        raise BadOption("a consumer needs either topics or namespace=")
    if topic is not None:
        if topic_properties is not None:
            raise BadOption("topic_properties goes with namespace=")
        return checked_topics(topic), {}
    check_type(namespace, str, "namespace", "text like 'tenant/namespace'")
    check_properties(topic_properties, "topic_properties")
    assert namespace is not None
    parse_namespace(namespace)
    return (), {"namespace": NamespaceTopicsSpec(namespace, dict(topic_properties or {}))}


def checked_topic(topic: str) -> TopicName:
    check_type(topic, str, "topic", "text like 'topic://public/default/orders'")
    name = TopicName.parse(topic)
    if name.domain is Domain.NON_PERSISTENT:
        raise BadOption("non-persistent topics are not supported by this client: they have no delivery guarantees")
    if name.domain is Domain.SEGMENT:
        raise BadOption(f"{topic} is a single segment; use its topic {name.scalable}")
    return name


def checked_hash(name: PartitionHash | str) -> PartitionHash:
    try:
        return PartitionHash(name)
    except ValueError:
        raise BadOption(f"unknown partition_hash {name!r}: one of {', '.join(PartitionHash)}") from None


def usable_tls(tls: Tls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    try:
        return tls_context(tls)
    except BadTlsFile as error:
        raise BadOption(f"the TLS files are not usable: {error}") from error


def new_name(what: str) -> str:
    return f"{what}-{secret_bytes(6).hex()}"
