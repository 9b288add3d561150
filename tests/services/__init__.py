"""Real servers for tests: obtained by name, started on free loopback ports, stopped by pid.

    single = services.shared("etcd")                        one node per kind and test process, stopped at its end
    three = services.cluster("zk", tmp_path, size=3)        a separate cluster: `with three: three.nodes[0].kill9()`

Both skip the test with a report if the server is not available here, or fail it with ANABRANCH_REQUIRE_SERVICES=1. The
methods block (a start takes a second): from a coroutine call them with `asyncio.to_thread`.

| module | what it is |
|---|---|
| `cache` | downloads and builds, kept between runs, one builder at a time |
| `process` | one server process: start, ready, stop, kill -9, pause; and clusters of them |
| `jvm` | a Java program that answers requests line by line |
| `zookeeper`, `etcd`, `oxia`, `pulsar_broker` | installation, settings and readiness of that server |
| `bookkeeper` | bookies on a ZooKeeper of their own, and BookKeeper's Java client |
| `secured` | ZooKeeper, etcd and Oxia that demand TLS, client certificates and credentials |
| `pulsar_admin`, `pulsar_v4`, `pulsar_v5`, `pulsar_java`, `pulsar_go` | Pulsar's own tool and clients |
| `kafka`, `spark_kafka` | peers for benchmarks, installed only when a benchmark needs them |
| `chromium` | a browser |
| `available` | skip or fail, the shared servers |
"""

from __future__ import annotations

from tests.services.available import KINDS, cluster, shared
from tests.services.cache import Unavailable
from tests.services.process import Cluster, Node, ServerFailed

__all__ = ["KINDS", "cluster", "shared", "Unavailable", "Cluster", "Node", "ServerFailed"]
