"""A process keeps one cluster, and with it the connections, per way of access: tasks come and go."""

from __future__ import annotations

from anabranch.spark.client.access import Access
from anabranch.spark.client.cluster_client import cluster_of


def test_tasks_of_a_process_share_their_connections() -> None:
    one, other = (Access.of("pulsar://127.0.0.1:6650", {"token": word}, 1_000) for word in ("one", "other"))
    again = Access.of("pulsar://127.0.0.1:6650", {"token": "one"}, 1_000)
    assert cluster_of(one) is cluster_of(again)
    assert cluster_of(one) is not cluster_of(other)
