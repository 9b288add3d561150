"""`anabranch admin ledgers` on real bookies: copies, ledgers of others, missing ones, orphans, recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from anabranch.admin.blocking import BlockingAdmin, connect
from anabranch.admin.errors import Refused
from anabranch.cli.main import main
from anabranch.protocol.entry import publish_time_of
from anabranch.runtime.clock import SystemClock
from anabranch.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from anabranch.storage.bookkeeper.settings import parse_storage_url
from tests.e2e.bookkeeper.conftest import options
from tests.services.bookkeeper import BookKeeper
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.stock_client import new_client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bookkeeper")]

TOPIC = "persistent://public/default/ledgers"


@pytest.fixture(scope="module")
def broker(bookies: BookKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path_factory.mktemp("data"), arguments=options(bookies, "ledgers-broker"))
    running.start()
    yield running
    running.close()


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[BlockingAdmin]:
    with connect(broker.http_url) as client:
        yield client


def publish(broker: BrokerProcess, count: int) -> None:
    client = new_client(broker.service_url)
    client.subscribe(TOPIC, "keeps all").close()
    producer = client.create_producer(TOPIC)
    for number in range(count):
        producer.send(b"%d" % number)
    client.close()


def ledger_of(admin: BlockingAdmin) -> int:
    (row,) = admin.topics.internal_stats(TOPIC)["ledgers"][-1:]
    return int(row["ledgerId"])


def with_owner_of(bookies: BookKeeper, owner: str, act: Any) -> Any:
    """Acts on a store of the same cluster, as a broker that stopped before it announced what it had created."""

    async def run() -> Any:
        url = parse_storage_url(bookies.url)
        async with BookKeeperLedgerStore(
            url, SystemClock(), Random(7), publish_time_of, cache_bytes=1 << 20, owner=owner
        ) as store:
            return await act(store)

    return asyncio.run(run())


def test_ledgers_are_listed_shown_and_recovered(
    bookies: BookKeeper, broker: BrokerProcess, admin: BlockingAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(broker, 10)
    ledger = ledger_of(admin)
    page = admin.ledgers.list(limit=1)
    assert len(page["ledgers"]) == 1 and page["next"] == page["ledgers"][0]["ledger"]
    assert ledger in {row["ledger"] for row in admin.ledgers.list(after=page["next"] - 1, limit=1000)["ledgers"]}
    shown = admin.ledgers.show(ledger)
    assert (shown["topic"], shown["use"], shown["state"], shown["copies"]) == (TOPIC, "data", "OPEN", 3)
    assert shown["isOwn"]

    closed = admin.ledgers.recover(ledger)
    assert (closed["state"], closed["entries"]) == ("CLOSED", 10)
    publish(broker, 5)
    assert ledger_of(admin) != ledger, "the topic continues in a new ledger"
    shown = admin.ledgers.show(ledger)
    assert {one["answer"] for one in shown["replicas"]} == {"ok"}
    assert {one["entry"] for one in shown["replicas"]} == {9}

    assert main(["admin", "ledgers", "show", str(ledger), "--admin-url", broker.http_url]) == 0
    text = capsys.readouterr().out
    assert TOPIC in text and "3 of 3" in text and shown["replicas"][0]["bookie"] in text
    assert main(["admin", "ledgers", "list", "--limit", "3", "--admin-url", broker.http_url]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 4
    assert main(["admin", "ledgers", "recover", str(ledger), "--admin-url", broker.http_url]) == 0
    assert "closed with 10 entries" in capsys.readouterr().out
    with pytest.raises(Refused, match="has no ledger 999999"):
        admin.ledgers.show(999_999)


def test_check_finds_bookies_that_are_away_missing_ledgers_and_orphans(
    bookies: BookKeeper, broker: BrokerProcess, admin: BlockingAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(broker, 10)
    ledger = ledger_of(admin)
    sound = admin.ledgers.check(orphan_age_s=0)
    assert sound["underReplicated"]["count"] == sound["missing"]["count"] == sound["orphans"]["count"] == 0
    assert len(sound["bookies"]) == 4

    owner = broker_owner(bookies)
    foreign = with_owner_of(bookies, "another", lambda store: store.allocate())
    orphan = with_owner_of(bookies, owner, lambda store: store.allocate())
    assert admin.ledgers.check()["unannounced"] >= 1, "it is too young"
    assert admin.ledgers.delete_orphans()["orphans"] == []
    dry = admin.ledgers.delete_orphans(orphan_age_s=0)
    assert (dry["dryRun"], dry["orphans"], dry["deleted"]) == (True, [orphan], [])
    arguments = ["admin", "ledgers", "check", "--orphan-age", "0", "--admin-url", broker.http_url]
    assert main(arguments) == 0
    assert "1 orphaned" in capsys.readouterr().out
    assert main([*arguments, "--delete-orphans"]) == 0
    assert f"deleted 1 orphaned ledgers: {orphan}" in capsys.readouterr().out
    assert admin.ledgers.show(foreign)["isOwn"] is False, "it belongs to another cluster"
    with pytest.raises(Refused, match="has no ledger"):
        admin.ledgers.show(orphan)

    away = next(one for one in bookies.bookies if one.address in admin.ledgers.show(ledger)["segments"][-1]["bookies"])
    away.stop()
    found = admin.ledgers.check(orphan_age_s=0)
    assert ledger in {row["ledger"] for row in found["underReplicated"]["ledgers"]}
    assert away.address in admin.ledgers.show(ledger)["away"]
    away.start()

    admin.topics.unload(TOPIC)
    with_owner_of(bookies, owner, lambda store: store.nodes.delete(ledger))
    found = admin.ledgers.check(orphan_age_s=0)
    assert [(row["ledger"], row["topic"]) for row in found["missing"]["ledgers"]] == [(ledger, TOPIC)]


def broker_owner(bookies: BookKeeper) -> str:
    from anabranch.metadata.open import bare_store

    async def run() -> str:
        async with bare_store(f"zk://{bookies.hosts}/ledgers-broker", SystemClock(), 10_000) as store:
            found = await store.get("/ledger-owner")
            assert found is not None
            return found.value.decode()

    return asyncio.run(run())
