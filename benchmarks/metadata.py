"""The metadata stores: `make bench-metadata` or `python -m benchmarks.metadata [--quick] [--only NAME …]`.

Each figure is measured against its floor or peer in one run, servers included. The latency of change events is measured
on all five stores.
Each module imported here documents its expected figures and can run alone.
"""

from __future__ import annotations

from benchmarks.stores import etcd as metadata_etcd
from benchmarks.stores import oxia as metadata_oxia
from benchmarks.stores import sqlite as metadata_sqlite
from benchmarks.stores import watch as metadata_watch
from benchmarks.stores import zookeeper as metadata_zookeeper
from benchmarks.support import report
from benchmarks.support.measure import Outcome, Run, Scene
from tests.services import etcd, oxia, zookeeper


def zookeeper_bulk(scene: Scene) -> list[Outcome]:
    with zookeeper.cluster(scene.place("zk")) as cluster:
        return metadata_zookeeper.bulk_read(scene, cluster)


def etcd_bulk(scene: Scene) -> list[Outcome]:
    with etcd.cluster(scene.place("etcd"), flags=metadata_etcd.DURABLE) as cluster:
        return metadata_etcd.bulk_write(scene, cluster)


def oxia_puts(scene: Scene) -> list[Outcome]:
    with oxia.cluster(scene.place("oxia"), flags=metadata_oxia.DURABLE) as cluster:
        return metadata_oxia.pipelined(scene, cluster) + metadata_oxia.bulk(scene, cluster)


MEASURES: dict[str, Run] = {
    "sqlite": metadata_sqlite.run,
    "zk": zookeeper_bulk,
    "etcd": etcd_bulk,
    "oxia": oxia_puts,
    "watch": metadata_watch.run,
}
SETTINGS = "servers as in tests/services, on the same machine; etcd and Oxia with fsync, ZooKeeper without"


def main(arguments: list[str] | None = None) -> int:
    return report.run("benchmarks.metadata", MEASURES, (), arguments, mark="-metadata", settings=SETTINGS)


if __name__ == "__main__":
    raise SystemExit(main())
