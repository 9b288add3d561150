"""The journal of changes over HTTP: what is noted, what is not, and the outcome."""

from __future__ import annotations

import uuid

from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_calls import Rest

SCALABLE = "/admin/v2/scalable/public/default"


def test_changes_are_noted_with_their_outcome_and_reads_and_messages_are_not(broker: BrokerProcess) -> None:
    rest, name = Rest(broker.http_url), f"o-{uuid.uuid4().hex[:8]}"
    path = f"{SCALABLE}/{name}"
    rest.expect("PUT", f"{path}?numInitialSegments=2", {})
    rest.expect("GET", f"{path}/stats")
    rest.expect("POST", f"/anabranch/v1/scalable/public/default/{name}/messages", {"messages": [{"payload": "x"}]})
    rest.expect("POST", f"{path}/autoscale/try", {"maxSegments": 3})
    rest.expect("POST", f"{path}/split/0?operationId=mine-{name}")
    assert rest.call("POST", f"{path}/split/99")[0] == 404
    noted = [one for one in rest.expect("GET", "/anabranch/v1/operations?count=500") if name in one["path"]]
    shown = [(one["method"], one["path"], one["status"], one["error"]) for one in noted]
    assert shown == [
        ("POST", f"{path}/split/99", 404, "unknown-segment"),
        ("POST", f"{path}/split/0", 204, ""),
        ("PUT", path, 204, ""),
    ]
    assert noted[1]["operationId"] == f"mine-{name}" and noted[1]["role"] is None
    assert noted[0]["reason"] and noted[0]["atMs"] >= noted[1]["atMs"] >= noted[2]["atMs"] > 0
    assert {one["broker"] for one in noted} == {f"127.0.0.1:{broker.http_port}"}
    assert len(rest.expect("GET", "/anabranch/v1/operations?count=1")) == 1
    assert [rest.call("GET", f"/anabranch/v1/operations?count={one}")[0] for one in ("0", "501", "x")] == [400] * 3
