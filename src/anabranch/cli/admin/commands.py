"""`anabranch admin`: nouns and verbs of pulsar-admin over the admin REST. The nouns load when they are used."""

from __future__ import annotations

from anabranch.cli.admin.verb import connection_options
from anabranch.cli.lazy_group import LazyGroup

NOUNS = {
    "tenants": ("anabranch.cli.admin.tenants", "tenants", "Who administers which namespaces."),
    "namespaces": ("anabranch.cli.admin.namespaces", "namespaces", "Topics with common policies and permissions."),
    "topics": ("anabranch.cli.admin.topics", "topics", "Create, look at, delete topics."),
    "topic-policies": ("anabranch.cli.admin.topic_policies", "topic_policies", "Policies of single topics."),
    "scalable-topics": ("anabranch.cli.admin.scalable_topics", "scalable_topics", "Topics that split and merge."),
    "subscriptions": ("anabranch.cli.admin.topics", "subscriptions", "Subscriptions of topics."),
    "schemas": ("anabranch.cli.admin.schemas", "schemas", "Schemas of topics."),
    "clusters": ("anabranch.cli.admin.tenants", "clusters", "Names with addresses."),
    "ns-isolation-policy": (
        "anabranch.cli.admin.tenants",
        "isolation_policies",
        "Isolation policies of namespaces (kept, without effect).",
    ),
    "metadata-migration": (
        "anabranch.cli.admin.metadata_migration",
        "metadata_migration",
        "Move all metadata to another store.",
    ),
    "ledgers": ("anabranch.cli.admin.ledgers", "ledgers", "Ledgers on Apache BookKeeper: copies, orphans."),
    "brokers": ("anabranch.cli.admin.brokers", "brokers", "Who is there, who leads, drain one."),
}

admin = LazyGroup(
    "admin",
    NOUNS,
    help="""Administer a broker with the nouns and verbs of pulsar-admin.

    \b
    Examples:
      anabranch admin topics list public/default
      anabranch admin topics stats my-topic
      anabranch admin namespaces set-retention acme/orders --time 7d --size 10G
      anabranch admin tenants list --json

    A topic's short name means persistent://public/default/NAME. Every verb has --help and --json; --admin-url and
    --token may stand anywhere, or in ANABRANCH_ADMIN_URL and ANABRANCH_TOKEN.
    """,
    params=connection_options(),
)
