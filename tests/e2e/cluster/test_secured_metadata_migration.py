"""A broker moves to a store that demands TLS, a client certificate and credentials, and is started on it afterwards.

No secret is in an answer, an error, the settings that are shown, the record of the migration, or a log.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli.main import main
from anabranch.metadata.migration.record import MIGRATION
from anabranch.metadata.open import bare_store
from anabranch.runtime.clock import SystemClock
from tests.services.secured import secured
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.cluster import RestRefused, rest

pytestmark = [pytest.mark.slow]

ROOT = "/admin/v2/metadata/migration"
PATH = {"zk": "/mine", "etcd": "/mine", "oxia": "/default/mine"}
ENDS_S = 60.0
SHOWN = (
    "/admin/v2/brokers/configuration/runtime",
    "/admin/v2/brokers/configuration/values",
    "/admin/v2/brokers/internal-configuration",
    f"{ROOT}/status",
)


async def record_in(url: str) -> str:
    async with bare_store(url, SystemClock()) as store:
        found = await store.get(MIGRATION)
        assert found is not None
        return found.value.decode()


def move(broker: BrokerProcess, target: str, **options: Any) -> Any:
    rest(broker, "POST", f"{ROOT}/start", {"targetUrl": target, **options}, within_s=60)
    deadline = time.monotonic() + ENDS_S
    while not (found := rest(broker, "GET", f"{ROOT}/status")).get("allSwitched"):
        assert found["phase"] != "FAILED" and time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("etcd", marks=pytest.mark.xdist_group("etcd")),
        pytest.param("zk", marks=pytest.mark.soak),
        pytest.param("oxia", marks=pytest.mark.soak),
    ],
)
def test_a_broker_moves_between_secured_stores_and_shows_no_secret(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"sqlite:///{tmp_path}/source"
    with secured(kind, tmp_path / "server") as server:
        option = "token-file" if kind == "oxia" else "password-file"
        secret = Path(server.options[option]).read_text().strip()
        wrong = server.secret("wrong", "not.the.secret")
        target, second = server.url(PATH[kind]), server.url(f"{PATH[kind]}-second")
        shown: list[str] = []
        with BrokerProcess(tmp_path / "data", arguments=["--set", f"metadata.url={source}"]).start() as broker:
            rest(broker, "PUT", "/admin/v2/persistent/public/default/kept")
            for bad in (
                server.url(PATH[kind], **{option: "/not/there"}),
                server.url(PATH[kind], cert=None, key=None),
                server.url(PATH[kind], server_name="other.example"),
                # ZooKeeper takes any name and password as a user of its own
                *([] if kind == "zk" else [server.url(PATH[kind], **{option: wrong})]),
            ):
                with pytest.raises(RestRefused) as refused:
                    rest(broker, "POST", f"{ROOT}/start", {"targetUrl": bad}, within_s=60)
                assert refused.value.status == 400
                assert "bad-migration-target" in str(refused.value)
                shown.append(str(refused.value))
            assert rest(broker, "GET", f"{ROOT}/status")["phase"] == "NOT_STARTED"
            for url in (target, second):
                assert move(broker, url)["settings"] == {"metadata.url": url}
            assert rest(broker, "POST", f"{ROOT}/verify", within_s=60)["different"] == 0
            shown += [json.dumps(rest(broker, "GET", path)) for path in SHOWN]
            internal = rest(broker, "GET", "/admin/v2/brokers/internal-configuration")
            assert internal["metadataStoreUrl"] == second.partition("?")[0]
        shown += [asyncio.run(record_in(url)) for url in (source, target, second)]
        again = BrokerProcess(tmp_path / "data", arguments=["--set", f"metadata.url={target}"])  # the middle one
        with again.start():
            names = rest(again, "GET", "/admin/v2/persistent/public/default")
            assert "persistent://public/default/kept" in names
            settings = rest(again, "GET", "/admin/v2/brokers/configuration/runtime")
            assert settings["metadata.url"] == target.partition("?")[0]
            shown.append(json.dumps(settings))
        for words in (["ls", second, "-r"], ["get", target, MIGRATION], ["put", target, "/x", "1"], ["ls", wrong]):
            main(["metadata", *words])
            out, err = capsys.readouterr()
            shown += [out, err]
        assert "uses another metadata store" in "".join(shown)
        shown.append(broker.log_path.read_text(errors="replace"))
        for one in (secret, json.dumps(secret)[1:-1], "not.the.secret"):
            assert not [text for text in shown if one in text]
