"""An independent judge of the HTTP port: schemathesis makes calls from /openapi.json and holds the answers against it.

It runs as a program of its own, on a broker of its own, with names that exist among those it may choose from.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartBroker
from tests.support.traffic.stock_calls import Rest
from tests.support.traffic.stock_client import new_client

pytestmark = pytest.mark.slow

EXAMPLES = 4
NAMES: dict[str, list[str]] = {
    "tenant": ["public", "public", "absent"],
    "namespace": ["default", "other", "absent"],
    "topic": ["t", "parts", "parts-partition-0", "absent"],
    "subscription": ["s", "absent"],
    "domain": ["persistent", "persistent", "non-persistent"],
    "cluster": ["standalone", "absent"],
    "bundle": ["0x00000000_0x40000000", "zzz"],
    "role": ["r"],
}
KEPT = (  # everything else would only find that nothing is there any more
    "delete_admin_v2_namespaces_tenant_namespace",
    "delete_admin_v2_tenants_tenant",
    "delete_admin_v2_domain_tenant_namespace_topic",
    "delete_admin_v2_domain_tenant_namespace_topic_partitions",
    "post_admin_v2_namespaces_tenant_namespace_replication",  # may send the namespace elsewhere
)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def prepared(rest: Rest, service_url: str) -> Any:
    """Something to find, and the description with names that find it."""
    rest.expect("PUT", "/admin/v2/namespaces/public/other")
    rest.create_partitioned("persistent://public/default/parts", 2)
    client = new_client(service_url)
    consumer = client.subscribe("persistent://public/default/t", "s")
    producer = client.create_producer("persistent://public/default/t")
    for number in range(20):
        producer.send(b"%d" % number)
    consumer.receive(10_000)
    client.close()
    document = rest.expect("GET", "/openapi.json")
    for verbs in document["paths"].values():
        for operation in verbs.values():
            for given in operation["parameters"]:
                if given["in"] == "path" and given["name"] in NAMES:
                    given["schema"] = {"type": "string", "enum": sorted(set(NAMES[given["name"]]))}
    return document


def test_answers_match_the_document(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    rest = Rest(broker.http_url)
    description = tmp_path / "openapi.json"
    description.write_text(json.dumps(prepared(rest, broker.service_url)))
    excluded = [word for name in KEPT for word in ("--exclude-operation-id", name)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(description), "--url", broker.http_url),
            *("--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", "4", "--checks", CHECKS),
            *(
                "--exclude-path",
                "/metrics",
                "--exclude-path",
                "/docs",
                "--exclude-path-regex",
                "/(events|console/.*)$",
                "--no-color",
                "--request-timeout",
                "10",
            ),
            *excluded,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert broker.log_complaints() == []
    assert "msgInCounter" in rest.expect("GET", "/admin/v2/persistent/public/default/t/stats")
