"""Names completed from the broker: topics, subscriptions, namespaces, tenants, clusters, brokers.

A shell waits for them, so the answer is bounded in time and number, and silent when there is none: no broker, no
rights, a name that is not one yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import click

from anabranch.admin.client import AdminClient
from anabranch.admin.paths import component, namespace_path, scalable_path, topic_path
from anabranch.model.errors import Error

SECONDS_MAX = 0.5  # per call
NAMES_MAX = 200
DEFAULT_NAMESPACE = "public/default"
DOMAINS = ("persistent", "non-persistent", "topic")
Find = Callable[[AdminClient, click.Context, str], Iterator[str]]
Completer = Callable[[click.Context, click.Parameter, str], list[str]]
Open = Callable[[click.Context, float], AdminClient]


def completer(kind: str, open_admin: Open) -> Completer | None:
    """What click asks for values of a parameter of this kind; None: there are no names of it."""
    find = _FINDERS.get(kind)
    if find is None:
        return None

    def complete(context: click.Context, parameter: click.Parameter, given: str) -> list[str]:
        found: list[str] = []
        try:
            with closing(open_admin(context, SECONDS_MAX)) as admin:
                names = find(admin, context, given)  # the shell shows and types what is found
                found.extend(name for name in names if name.startswith(given) and name.isprintable())
        except Error:
            return found[:NAMES_MAX]
        return sorted(found)[:NAMES_MAX]

    return complete


def _tenants(admin: AdminClient, context: click.Context, given: str) -> Iterator[str]:
    yield from admin.get("/admin/v2/tenants")


def _namespaces(admin: AdminClient, context: click.Context, given: str) -> Iterator[str]:
    """Tenants with a slash until there is one, else the namespaces of that tenant."""
    tenant, slash, _ = given.partition("/")
    if slash:
        yield from admin.get(f"/admin/v2/namespaces/{component(tenant)}")
        return
    fitting = [one for one in admin.get("/admin/v2/tenants") if one.startswith(given)]
    if len(fitting) == 1:
        yield from admin.get(f"/admin/v2/namespaces/{component(fitting[0])}")
    else:
        yield from (f"{one}/" for one in fitting)


def _clusters(admin: AdminClient, context: click.Context, given: str) -> Iterator[str]:
    yield from admin.get("/admin/v2/clusters")


def _brokers(admin: AdminClient, context: click.Context, given: str) -> Iterator[str]:
    yield from admin.get("/admin/v2/brokers")


def _topics(domains: tuple[str, ...]) -> Find:
    def find(admin: AdminClient, context: click.Context, given: str) -> Iterator[str]:
        domain, mark, rest = given.partition("://")
        if not mark:
            for one in domains:
                yield from (name.rpartition("/")[2] for name in _in_namespace(admin, one, DEFAULT_NAMESPACE))
            yield from (f"{one}://" for one in domains if given and one.startswith(given))
        elif rest.count("/") >= 2:
            yield from _in_namespace(admin, domain, "/".join(rest.split("/")[:2]))
        else:
            yield from (
                f"{domain}://{one}/" if not one.endswith("/") else f"{domain}://{one}"
                for one in _namespaces(admin, context, rest)
            )

    return find


def _in_namespace(admin: AdminClient, domain: str, namespace: str) -> Iterator[str]:
    path = namespace_path(namespace)
    yield from admin.get(f"/admin/v2/{'scalable' if domain == 'topic' else domain}/{path}")
    if domain != "topic":
        yield from admin.get(f"/admin/v2/{domain}/{path}/partitioned")


def _subscriptions(admin: AdminClient, context: click.Context, given: str) -> Iterator[str]:
    """Of the topic that the command line names; nothing before it does."""
    # What stands before an option without its value is not parsed: it is in `args`.
    words: list[Any] = [context.params.get("topic"), context.params.get("scalable_topic"), *context.args]
    topic = next((one for one in words if one and not str(one).startswith("-")), None)
    if topic is None:
        return
    if "scalable_topic" in context.params or str(topic).startswith("topic://"):
        yield from admin.get(f"/admin/v2/scalable/{scalable_path(str(topic))}/stats")["subscriptions"]
    else:
        yield from admin.get(f"/admin/v2/{topic_path(str(topic))}/subscriptions")


_FINDERS: dict[str, Find] = {
    "topic": _topics(("persistent", "non-persistent")),
    "bare_topic": _topics(("persistent", "topic")),
    "any_topic": _topics(DOMAINS),
    "scalable_topic": _topics(("topic",)),
    "subscription": _subscriptions,
    "namespace": _namespaces,
    "tenant": _tenants,
    "cluster": _clusters,
    "broker_id": _brokers,
}
