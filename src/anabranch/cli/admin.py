"""`anabranch admin`: nouns and verbs of pulsar-admin over the admin REST. The nouns load when they are used."""

from __future__ import annotations

from anabranch.cli.lazy import LazyGroup
from anabranch.cli.verb import connection_options

NOUNS = {
    "tenants": ("anabranch.cli.nouns_tenants", "tenants", "Who administers which namespaces."),
    "namespaces": ("anabranch.cli.nouns_namespaces", "namespaces", "Topics with common policies and permissions."),
    "topics": ("anabranch.cli.nouns_topics", "topics", "Create, look at, delete topics."),
    "scalable-topics": ("anabranch.cli.nouns_scalable", "scalable_topics", "Topics that split and merge."),
    "subscriptions": ("anabranch.cli.nouns_topics", "subscriptions", "Subscriptions of topics."),
    "schemas": ("anabranch.cli.nouns_schemas", "schemas", "Schemas of topics."),
    "clusters": ("anabranch.cli.nouns_tenants", "clusters", "Names with addresses."),
    "brokers": ("anabranch.cli.nouns_brokers", "brokers", "Who is there, who leads, drain one."),
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
