"""docs/reference/admin-calls.md: every call of Pulsar's admin/v2, and whether this broker serves it.

    python -m scripts.admin_calls_reference > docs/reference/admin-calls.md

The calls are those of the annotations of Apache Pulsar 5.0.0-M1 (`tests/unit/project/docs/pulsar_admin_calls.txt`). The
routes are those that `tests/compatibility` records from a broker. A test fails if the page is not what this writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUTES = ROOT / "tests/compatibility/surface/rest.json"
CALLS = ROOT / "tests/unit/project/docs/pulsar_admin_calls.txt"

STORED = (
    (r"/clusters/.*(failureDomains|namespaceIsolationPolicies|peers)", "read by tools"),
    (r"/namespaces/.*([oO]ffload|antiAffinity)", "read by tools"),
    (r"/namespaces/.*(replicatorDispatchRate|replication$|allowedClusters|subscriptionAuthMode)", "no geo-replication"),
    (r"/namespaces/.*/(persistence|dispatcherPauseOnAckStatePersistent)$", "one copy is made; acks are durable"),
)
NOT_APPLICABLE = (
    (r"/(functions|worker|worker-stats)", "there is no functions worker"),
    (r"/bookies|bookieAffinity|/bookieops", "no bookies are managed"),
    (r"/resource-quotas", "topics are spread by load, not by quotas of bundles"),
    (r"resourcegroup", "no resource groups"),
    (r"mbeans|allocator-stats|broker-resource-availability|load-report", "describes Pulsar's JVM or its load manager"),
    (r"clusters/[^/]+/migrate|/migration$", "no blue-green migration between clusters (PIP-188)"),
    (r"shadowTopics|/replication$|replicatorDispatchRate", "no geo-replication"),
    (r"[oO]ffload|scanOffloadedLedgers", "no offloading"),
    (r"entryFilters", "no plug-ins in the broker"),
    (r"allowedTopicPropertyKeysForMetrics", "metrics have no labels from properties"),
    (r"/brokers/shutdown", "a broker is stopped by a signal (`docs/operations/running.md`)"),
    (r"/segments/.*/subscription/", "cursors of segments are moved with their subscription, under `/scalable`"),
)
MISSING = ((r"", "not built"),)
STATES = ("served", "stored only", "not applicable", "missing")


def shape(path: str) -> str:
    """The path without the names of its parts."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def calls() -> list[tuple[str, str]]:
    """(verb, path) of Pulsar."""
    pairs = (line.split() for line in CALLS.read_text().splitlines())
    return [(verb, path) for verb, path in pairs]


def is_served(verb: str, path: str, served: set[tuple[str, str]]) -> bool:
    wanted = shape(path)
    own = re.sub(r"^/admin/v2/(non-)?persistent/", "/admin/v2/{}/", wanted)
    return bool({(verb, wanted), (verb, own)} & served)


def judged(verb: str, path: str, served: set[tuple[str, str]]) -> tuple[str, str]:
    """State and reason."""
    if is_served(verb, path, served):
        return next((("stored only", why) for pattern, why in STORED if re.search(pattern, path)), ("served", ""))
    for state, reasons in (("not applicable", NOT_APPLICABLE), ("missing", MISSING)):
        for pattern, why in reasons:
            if re.search(pattern, path):
                return state, why
    raise AssertionError(path)


def routes() -> set[tuple[str, str]]:
    """(verb, shape of the path) of this broker."""
    names = (name.rpartition(" ") for name in json.loads(ROUTES.read_text()))
    return {(verb, shape(path)) for path, _, verb in names}


def page() -> str:
    served = routes()
    rows = [(verb, path, *judged(verb, path, served)) for verb, path in calls()]
    counts = Counter(state for _, _, state, _ in rows)
    apply = len(rows) - counts["not applicable"]
    share = 100 * (counts["served"] + counts["stored only"]) / apply
    head = """# Calls of Pulsar's admin REST

Every call below `/admin/v2` of Apache Pulsar 5.0.0-M1. *Stored only*: kept and answered, without effect here. *Not
applicable*: what it is about does not exist here. `python -m scripts.admin_calls_reference` writes this page from the
table of routes.

| state | calls |
|---|---|
"""
    totals = "".join(f"| {state} | {counts[state]} |\n" for state in STATES)
    text = f"\nOf the {apply} calls that apply, {share:.0f} % are served.\n\n| call | state | why |\n|---|---|---|\n"
    return head + totals + text + "".join(f"| `{verb} {path}` | {state} | {why} |\n" for verb, path, state, why in rows)


if __name__ == "__main__":
    print(page(), end="")
