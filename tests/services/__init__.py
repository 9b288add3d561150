"""Real servers for tests: obtained by name, started on free loopback ports, stopped by pid.

    single = services.shared("etcd")                        one node per kind and test process, stopped at its end
    three = services.cluster("zk", tmp_path, size=3)        your own: `with three: three.nodes[0].kill9()`

Both end in a reported skip when the server cannot be had here, or in a failure with ANABRANCH_REQUIRE_SERVICES=1.
The methods block (a start takes a second): from a coroutine call them with `asyncio.to_thread`.

| module | what it knows |
|---|---|
| `cache` | where what was downloaded or built stays, one builder at a time |
| `process` | one server process: start, ready, stop, kill -9, pause; and a cluster of them |
| `zookeeper`, `etcd`, `oxia`, `pulsar_broker` | how to get that server, its settings, when it is ready |
| `kafka`, `spark_kafka` | the same for what benchmarks compare with; got only when one of them wants it |
| `available` | skip or fail, the shared servers |
"""

from __future__ import annotations

from tests.services.available import KINDS, cluster, shared
from tests.services.cache import Unavailable
from tests.services.process import Cluster, Node, ServerFailed

__all__ = ["KINDS", "cluster", "shared", "Unavailable", "Cluster", "Node", "ServerFailed"]
