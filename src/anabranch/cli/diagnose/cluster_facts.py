"""Reads the facts of a cluster over REST. What the caller may not see is left out; the number of topics is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anabranch.admin.client import AdminClient
from anabranch.admin.errors import AdminError, Refused
from anabranch.admin.paths import component, namespace_path, timeline_url, topic_path
from anabranch.cli.diagnose.attention import ClusterFacts, TopicFacts, migration_step
from anabranch.runtime.clock import Clock

TOPICS_MAX = 200
LASTING_SUPPRESSIONS = ("max-segments", "max-depth", "too-narrow", "hot-key", "recent-failure")
"""Rules that end by a change of the topic or its policy; the others end by themselves."""


def cluster_facts(admin: AdminClient, clock: Clock, topics_max: int = TOPICS_MAX) -> ClusterFacts:
    """Raises AdminError if no broker answers, or if it does not accept the credentials."""
    health = ""
    try:
        admin.get("/admin/v2/brokers/health")
    except Refused as error:
        if error.status in (401, 403):
            raise
        health = error.reason
    names = list(topic_names(admin))
    return ClusterFacts(
        now_ms=clock.now_ms(),
        health=health,
        brokers=_brokers(admin),
        machines=_allowed(admin, "/anabranch/v1/machines") or (),
        migration_phase=migration_step(_allowed(admin, "/admin/v2/metadata/migration/status") or {}),
        topics=[topic_facts(admin, kind, name) for kind, name in names[:topics_max]],
        topics_unread=max(0, len(names) - topics_max),
    )


def _allowed(admin: AdminClient, path: str) -> Any:
    """The answer; None if the caller may not have it, or there is none."""
    try:
        return admin.get(path)
    except Refused as error:
        if error.status == 401:
            raise
        return None


def _brokers(admin: AdminClient) -> list[dict[str, Any]] | None:
    """Those of the cluster that answers; another one may be registered too."""
    for cluster in _allowed(admin, "/admin/v2/clusters") or ():
        found: list[dict[str, Any]] | None = _allowed(admin, f"/admin/v2/brokers/{component(cluster)}/details")
        if found is not None:
            return found
    return None


def topic_names(admin: AdminClient) -> Iterator[tuple[str, str]]:
    """(kind, name) of all topics that the caller may list; partitions are in their topic."""
    for tenant in _allowed(admin, "/admin/v2/tenants") or ():
        for namespace in _allowed(admin, f"/admin/v2/namespaces/{component(tenant)}") or ():
            path = namespace_path(namespace)
            for name in _allowed(admin, f"/admin/v2/scalable/{path}") or ():
                yield "scalable", name
            parents = set(_allowed(admin, f"/admin/v2/persistent/{path}/partitioned") or ())
            for name in sorted(parents):
                yield "partitioned", name
            for name in _allowed(admin, f"/admin/v2/persistent/{path}") or ():
                if name.rpartition("-partition-")[0] not in parents and name not in parents:
                    yield "regular", name


def topic_facts(admin: AdminClient, kind: str, name: str) -> TopicFacts:
    try:
        if kind == "scalable":
            return _of_tick(name, admin.get(timeline_url(name, "tick")))
        call = "partitioned-stats" if kind == "partitioned" else "stats"
        return _of_stats(name, admin.get(f"/admin/v2/{topic_path(name)}/{call}"))
    except AdminError as error:
        gone = isinstance(error, Refused) and error.status in (403, 404)  # deleted meanwhile, or not the caller's
        return TopicFacts(name, error="" if gone else error.reason)


def _of_tick(name: str, tick: dict[str, Any]) -> TopicFacts:
    segments, subscriptions = tick["segments"].values(), tick["subscriptions"]
    scaling = tick["autoScale"]
    policy, decision = scaling.get("policy", {}), scaling.get("now", {})
    wanted = [
        f"{one['kind']}: {one['detail']}"
        for one in decision.get("suppressed", ())
        if one["suppressedBy"] in LASTING_SUPPRESSIONS
    ]
    return TopicFacts(
        name,
        rate_in=sum(one["rates"]["in"]["msg"]["10"] for one in segments),
        rate_out=sum(one["rates"]["out"]["msg"]["10"] for one in segments),
        stored=sum(one["messages"] for one in segments),
        backlogs={one: facts["msgBacklog"] for one, facts in subscriptions.items()},
        consumers={one: _consumers(facts) for one, facts in subscriptions.items()},
        active=int(tick["active"]),
        segments_max=int(policy.get("maxSegments", 0)) if policy.get("enabled") else 0,
        operation=tick["operation"],
        suppressed=wanted if policy.get("enabled") else (),
    )


def _consumers(facts: dict[str, Any]) -> int:
    return max(int(facts["consumerCount"]), max((one["consumers"] for one in facts["segments"].values()), default=0))


def _of_stats(name: str, stats: dict[str, Any]) -> TopicFacts:
    subscriptions = stats.get("subscriptions", {})
    return TopicFacts(
        name,
        rate_in=float(stats.get("msgRateIn", 0)),
        rate_out=float(stats.get("msgRateOut", 0)),
        stored=int(stats.get("msgInCounter", 0)),
        backlogs={one: int(facts.get("msgBacklog", 0)) for one, facts in subscriptions.items()},
        consumers={one: len(facts.get("consumers", ())) for one, facts in subscriptions.items()},
    )
