"""What is only stored: failure domains, isolation policies and peers of clusters, offload policies of namespaces."""

from __future__ import annotations

import uuid

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

CLUSTER = "/admin/v2/clusters/standalone"


@pytest.fixture
def rest(broker: BrokerProcess) -> Rest:
    return Rest(broker.http_url)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("failureDomains", {"brokers": ["b1:8080", "b2:8080"]}),
        (
            "namespaceIsolationPolicies",
            {
                "namespaces": ["public/.*"],
                "primary": ["b1.*"],
                "secondary": [],
                "auto_failover_policy": {
                    "policy_type": "min_available",
                    "parameters": {"min_limit": "1", "usage_threshold": "80"},
                },
            },
        ),
    ],
)
def test_records_of_a_cluster_are_kept_and_deleted(rest: Rest, kind: str, value: object) -> None:
    name = f"r-{uuid.uuid4().hex[:8]}"
    one = f"{CLUSTER}/{kind}/{name}"
    assert rest.call("GET", one)[0] == 404
    rest.expect("POST", one, value)
    assert rest.expect("GET", one) == value
    assert rest.expect("GET", f"{CLUSTER}/{kind}")[name] == value
    assert kind not in rest.expect("GET", CLUSTER)
    rest.expect("POST", CLUSTER, {"serviceUrl": "http://elsewhere:8080"})
    assert rest.expect("GET", one) == value, "a change of addresses keeps it"
    assert rest.call("POST", one, [])[0] == 400
    rest.expect("DELETE", one)
    assert (rest.call("GET", one)[0], rest.call("DELETE", one)[0]) == (404, 404)
    assert rest.call("GET", f"/admin/v2/clusters/none/{kind}")[0] == 404


def test_peers_are_clusters(rest: Rest) -> None:
    other = f"c-{uuid.uuid4().hex[:8]}"
    assert rest.expect("GET", f"{CLUSTER}/peers") is None
    assert rest.call("POST", f"{CLUSTER}/peers", [other])[0] == 412
    assert rest.call("POST", f"{CLUSTER}/peers", ["standalone"])[0] == 412
    rest.expect("PUT", f"/admin/v2/clusters/{other}", {"serviceUrl": "http://other:8080"})
    rest.expect("POST", f"{CLUSTER}/peers", [other])
    assert rest.expect("GET", f"{CLUSTER}/peers") == [other]
    rest.expect("POST", f"{CLUSTER}/peers", [])


def test_offload_policies_are_stored(rest: Rest) -> None:
    path = f"/admin/v2/namespaces/public/n-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", path)
    for name, unset in (("offloadThreshold", -1), ("offloadThresholdInSeconds", -1), ("offloadDeletionLagMs", None)):
        assert rest.expect("GET", f"{path}/{name}") == unset
        rest.expect("PUT", f"{path}/{name}", 1_000_000)
        assert rest.expect("GET", f"{path}/{name}") == 1_000_000
    rest.expect("DELETE", f"{path}/offloadDeletionLagMs")
    assert rest.expect("GET", f"{path}/offloadDeletionLagMs") is None
    policies = {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "kept"}
    rest.expect("POST", f"{path}/offloadPolicies", policies)
    assert rest.expect("GET", f"{path}/offloadPolicies") == policies
    assert rest.expect("GET", path)["offload_policies"] == policies
    rest.expect("DELETE", f"{path}/removeOffloadPolicies")
    assert rest.expect("GET", f"{path}/offloadPolicies") is None


def test_isolation_policies_by_broker(rest: Rest, broker: BrokerProcess) -> None:
    name, here = f"r-{uuid.uuid4().hex[:8]}", broker.http_url.removeprefix("http://")
    of = f"{CLUSTER}/namespaceIsolationPolicies"
    rest.expect(
        "POST", f"{of}/{name}", {"namespaces": ["x/.*"], "primary": ["nowhere"], "secondary": [r"127\..*", "("]}
    )
    wanted = {"brokerName": here, "policyName": name, "primary": False, "namespaceRegex": ["x/.*"]}
    try:
        assert rest.expect("GET", f"{of}/brokers") == [wanted]
        assert rest.expect("GET", f"{of}/brokers/{here}") == wanted
        assert rest.call("GET", f"{of}/brokers/nowhere:1")[0] == 404
    finally:
        rest.expect("DELETE", f"{of}/{name}")
    assert rest.expect("GET", f"{of}/brokers") == [{"brokerName": here, "primary": False, "namespaceRegex": []}]


def test_namespaces_of_an_anti_affinity_group(rest: Rest) -> None:
    tenant = f"t-{uuid.uuid4().hex[:8]}"
    rest.expect("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["standalone"]})
    for name in ("a", "b"):
        rest.expect("PUT", f"/admin/v2/namespaces/{tenant}/{name}")
    rest.expect("POST", f"/admin/v2/namespaces/{tenant}/b/antiAffinity", "g")
    found = "/admin/v2/namespaces/standalone/antiAffinity"
    assert rest.expect("GET", f"{found}/%22g%22?tenant={tenant}") == [f"{tenant}/b"], "quotes are kept, as in Pulsar"
    assert rest.expect("GET", f"{found}/h?tenant={tenant}") == []
