"""First steps of a migration: every partition is adopted as a segment, then its subscriptions are registered. Pure.

A partition's owner answers the clients that cannot follow (they block the migration, unless it is forced) and its
subscriptions. From then on it admits no such client. So the answers of all partitions together are exact: no client can
attach between the check and the seal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.controller.records.subscription_registry import SubscriptionKind
from anabranch.controller.segment_host import Adopted, OldClient

SHOWN_MAX = 20
"""Clients that an error names."""


def clients_text(clients: Iterable[OldClient]) -> str:
    """How many clients are attached, and who. A client with a producer per partition counts once."""
    named = sorted({str(one) for one in clients})
    more = f", and {len(named) - SHOWN_MAX} more" if len(named) > SHOWN_MAX else ""
    return f"{len(named)} clients cannot follow a migration: {'; '.join(named[:SHOWN_MAX])}{more}"


def subscription_kinds(adopted: Iterable[Adopted], chosen: Mapping[str, str]) -> dict[str, SubscriptionKind]:
    """Kind of each subscription: the chosen one; else QUEUE if its consumers share messages on some partition."""
    found: dict[str, SubscriptionKind] = {}
    for one in adopted:
        for name, is_shared in one.subscriptions:
            if is_shared or name not in found:
                found[name] = SubscriptionKind.QUEUE if is_shared else SubscriptionKind.STREAM
    return {name: SubscriptionKind(chosen.get(name, kind.value)) for name, kind in sorted(found.items())}
