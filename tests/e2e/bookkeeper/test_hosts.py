"""ZooKeeper, bookies and brokers on hosts of their own: hosts and links fail under load, and the audit holds.

The hosts are network namespaces. Where a machine does not allow them, the tests are skipped with the reason.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator

import pulsar
import pytest

from tests.e2e.bookkeeper.conftest import QUORUMS
from tests.services import available, bookkeeper
from tests.services.cache import Unavailable
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import ClusterProcesses
from tests.support.processes.hosts import Hosts, HostsUnavailable
from tests.support.traffic.audited_topic import AuditedTopic

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bookkeeper")]

BOOKIES, BROKERS = 4, 3
SILENT_S = 180.0  # the stock client notices after 60 s that a host is silent
MINUTE = 20_000  # confirmations: about a minute of load through a fault


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    names = ["zk", *(f"k{number}" for number in range(1, BOOKIES + 1)), *(f"b{one}" for one in range(1, BROKERS + 1))]
    try:
        with Hosts(names) as made:
            yield made
    except HostsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def bookies(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bookkeeper.BookKeeper]:
    places = [hosts[f"k{number}"] for number in range(1, BOOKIES + 1)]
    try:
        made = bookkeeper.cluster_on(tmp_path_factory.mktemp("hosts"), hosts["zk"], places)
    except Unavailable as error:
        available.give_up("bookkeeper", error)
    with made:
        yield made


@pytest.fixture(scope="module")
def cluster(
    hosts: Hosts, bookies: bookkeeper.BookKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    arguments = ["--metadata", f"zk://{bookies.hosts}/hosts", "--storage", f"{bookies.url}?{QUORUMS}&timeout-ms=2000"]
    places = [hosts[f"b{number}"] for number in range(1, BROKERS + 1)]
    folder = tmp_path_factory.mktemp("brokers")
    with ClusterProcesses(folder, BROKERS, session_ms=3_000, arguments=arguments, hosts=places) as started:
        yield started


class Story:
    """A topic under load, and the names of the hosts that it uses."""

    def __init__(self, hosts: Hosts, cluster: ClusterProcesses, bookies: bookkeeper.BookKeeper, load: int) -> None:
        self.hosts, self.cluster, self.bookies, self.load = hosts, cluster, bookies, load
        cluster.revive()
        for bookie in bookies.bookies:
            if not bookie.is_alive:
                bookie.start()
        self.client = pulsar.Client(cluster.service_url, operation_timeout_seconds=30)
        self.topic = f"persistent://public/default/h-{uuid.uuid4().hex[:10]}"
        self.audited = AuditedTopic(self.client, self.topic)
        self.go_on()

    def go_on(self) -> None:
        confirmed = self.audited.sender.acknowledged
        wanted = len(confirmed) + self.load
        self.cluster.until(lambda: len(confirmed) >= wanted, "no receipts", SILENT_S)

    def owner(self) -> tuple[BrokerProcess, str]:
        broker = self.cluster.owner(self.topic)
        return broker, next(name for name, one in self.cluster.brokers.items() if one is broker)

    def wait_moved(self, away: BrokerProcess) -> None:
        other = next(one for one in self.cluster.alive if one is not away)
        self.cluster.until(lambda: self.cluster.owner(self.topic, by=other) is not away, "no broker took over")

    def close(self) -> None:
        self.audited.close(self.cluster)
        self.client.close()


@pytest.fixture(params=[300, pytest.param(MINUTE, marks=pytest.mark.soak)], ids=["short", "minutes"])
def story(
    hosts: Hosts, cluster: ClusterProcesses, bookies: bookkeeper.BookKeeper, request: pytest.FixtureRequest
) -> Iterator[Story]:
    made = Story(hosts, cluster, bookies, request.param)
    yield made
    made.close()


def test_owner_is_cut_off_from_zookeeper_and_bookies_then_a_bookie_from_all(story: Story) -> None:
    broker, name = story.owner()
    others = ["zk", *(f"k{number}" for number in range(1, BOOKIES + 1))]
    for other in others:
        story.hosts.cut_way(name, other)
    story.wait_moved(broker)
    story.go_on()
    for other in others:
        story.hosts.mend_way(name, other)
    story.hosts.cut("k1")
    story.go_on()
    story.hosts.mend("k1")
    story.go_on()


@pytest.mark.soak
def test_host_of_the_owner_is_cut_off_from_all(story: Story) -> None:
    broker, name = story.owner()
    story.hosts.cut(name)
    story.wait_moved(broker)
    story.go_on()
    story.hosts.mend(name)
    story.go_on()


@pytest.mark.soak
def test_links_fail_in_one_direction(story: Story) -> None:
    _, name = story.owner()
    for source, target in ((name, "k1"), ("k2", name), (name, "zk")):
        story.hosts.cut_way(source, target)
        story.go_on()
        story.hosts.mend_way(source, target)
        story.go_on()


@pytest.mark.soak
def test_brokers_are_killed_and_frozen_with_a_bookie_at_once(story: Story) -> None:
    broker, _ = story.owner()
    victim = story.bookies.bookies[0]
    broker.kill9()
    victim.kill9()
    story.go_on()
    story.cluster.revive()
    victim.start()
    broker, _ = story.owner()
    broker.freeze()
    victim.pause()
    story.wait_moved(broker)
    story.go_on()
    broker.thaw()
    victim.resume()
    story.go_on()


@pytest.mark.soak
def test_a_bookie_comes_back_as_a_new_one_without_its_disks(story: Story) -> None:
    """Under a new id, as operators must do: an empty disk under an old id would deny entries that were confirmed."""
    victim = story.bookies.bookies[-1]
    victim.kill9()
    story.go_on()
    shutil.rmtree(victim.folder / "journal")
    shutil.rmtree(victim.folder / "ledgers")
    story.bookies.bookies.remove(victim)
    story.bookies.add_bookie(victim.host).start()
    story.go_on()


@pytest.mark.soak
def test_a_bookie_with_a_full_disk_is_replaced(story: Story) -> None:
    full = story.bookies.bookies[1]
    story.bookies.restart(full, is_read_only=True)
    story.go_on()
    story.bookies.restart(full)
    story.go_on()
