"""Requests as browsers of hostile pages send them, and those of stock programs, against real brokers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartBroker
from tests.support.in_memory.credentials import token_of, write_secret
from tests.support.processes.broker_process import BrokerProcess

CLUSTERS = "/admin/v2/clusters"
TENANT = "/admin/v2/tenants/from-a-page"


def send(
    broker: BrokerProcess, method: str, path: str, headers: Mapping[str, str], body: str = ""
) -> tuple[int, Any, dict[str, str]]:
    line = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=10)
    line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        line.putheader(name, value)
    line.endheaders(body.encode())
    answer = line.getresponse()
    data = answer.read()
    line.close()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, json.loads(data) if "json" in found.get("content-type", "") else data, found


def test_dns_rebinding_is_refused(broker: BrokerProcess) -> None:
    evil = f"evil.example:{broker.http_port}"
    for method, path in (("GET", CLUSTERS), ("PUT", TENANT), ("GET", "/metrics"), ("GET", "/"), ("GET", "/nowhere")):
        status, answer, _ = send(broker, method, path, {"Host": evil, "Origin": f"http://{evil}"}, "{}")
        assert (status, answer["error"]) == (403, "foreign-host"), (method, path)
    assert "from-a-page" not in send(broker, "GET", "/admin/v2/tenants", {"Host": "localhost"})[1]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_stock_programs_are_served(broker: BrokerProcess, host: str) -> None:
    status, answer, _ = send(broker, "GET", CLUSTERS, {"Host": f"{host}:{broker.http_port}"})
    assert status == 200 and answer


def test_other_sites_cannot_read_or_change(broker: BrokerProcess) -> None:
    host = {"Host": f"localhost:{broker.http_port}"}
    for site in ("cross-site", "same-site"):
        for method, path in (("GET", CLUSTERS), ("GET", "/metrics"), ("PUT", TENANT), ("OPTIONS", CLUSTERS)):
            status, answer, _ = send(broker, method, path, {**host, "Sec-Fetch-Site": site})
            assert (status, answer["error"]) == (403, "forbidden"), (site, method, path)
    status, answer, _ = send(broker, "PUT", TENANT, {**host, "Origin": "http://evil.example"}, "{}")
    assert (status, answer["error"]) == (403, "forbidden")


def test_answers_keep_other_origins_out(broker: BrokerProcess) -> None:
    host = {"Host": f"localhost:{broker.http_port}"}
    for path in (CLUSTERS, "/docs", "/nowhere", "/console/docs.js", "/"):
        _, _, headers = send(broker, "GET", path, host)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "access-control-allow-origin" not in headers
    policy = send(broker, "GET", "/docs", host)[2]["content-security-policy"]
    assert "require-trusted-types-for 'script'" in policy and "trusted-types 'none'" in policy


def test_files_are_cached_by_their_tag(broker: BrokerProcess) -> None:
    host = {"Host": f"localhost:{broker.http_port}"}
    status, data, headers = send(broker, "GET", "/console/docs.js", host)
    assert status == 200 and len(data) == int(headers["content-length"])
    again = send(broker, "GET", "/console/docs.js", {**host, "If-None-Match": headers["etag"]})
    assert (again[0], again[1]) == (304, b"")
    packed = send(broker, "GET", "/console/docs.js", {**host, "Accept-Encoding": "gzip"})
    assert packed[2]["content-encoding"] == "gzip" and len(packed[1]) < len(data) / 2
    for path in ("/console/nothing.js", "/console/..%2F__init__.py", "/console/..%2F..%2Fserver.py"):
        assert send(broker, "GET", path, host)[0] == 404


def test_further_names_and_read_only(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=["--set", "http.hosts=console.example,*.lan", "--set", "http.read_only=true"])
    for name in ("console.example", "a.b.lan:9"):
        assert send(broker, "GET", CLUSTERS, {"Host": name})[0] == 200
        status, answer, _ = send(broker, "PUT", TENANT, {"Host": name}, "{}")
        assert (status, answer["error"]) == (403, "read-only")
    assert send(broker, "GET", CLUSTERS, {"Host": "lan"})[0] == 403


def test_name_is_free_with_credentials(start_broker: StartBroker, tmp_path: Path) -> None:
    secret = write_secret(tmp_path)
    words = ["security.methods=token", f"security.token_secret_key={secret}"]
    broker = start_broker(arguments=[part for word in words for part in ("--set", word)])
    token = {"Authorization": f"Bearer {token_of('viewer')}"}
    assert send(broker, "GET", CLUSTERS, {"Host": "balancer.example", **token})[0] == 200
    assert send(broker, "GET", CLUSTERS, {"Host": "balancer.example"})[0] == 401
    assert send(broker, "GET", "/docs", {"Host": "balancer.example"})[0] == 200
