"""REST and the admin clients of a metadata migration at a broker with authorization: every status code, every field."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch.admin
from anabranch.admin import Refused
from anabranch.metadata.interface import ANY
from anabranch.metadata.migration.record import MIGRATION
from anabranch.metadata.open import bare_store
from anabranch.rest.openapi.result_schemas import RESULTS
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.credentials import token_of, write_secret
from tests.support.processes.broker_process import BrokerProcess
from tests.support.traffic.json_schemas import complaints

pytestmark = [pytest.mark.slow]

ROOT = "/admin/v2/metadata/migration"
SECRET = "the-secret-word"
METRICS = "anabranch_metadata_migration_"
ENDS_S = 60.0
STATUS = RESULTS["GET", "/metadata/migration/status"]


class Site:
    """One broker with authorization, and the requests of its administrator."""

    def __init__(self, folder: Path) -> None:
        settings = {
            "security.methods": "token",
            "security.authorization": "true",
            "security.superusers": "root",
            "security.token_secret_key": str(write_secret(folder)),
            "metadata.url": f"sqlite:///{folder}/first",
        }
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.folder = folder
        self.broker = BrokerProcess(folder / "data", arguments=arguments)

    def url(self, name: str) -> str:
        return f"sqlite:///{self.folder}/{name}"

    def call(self, method: str, path: str, body: object = None, role: str | None = "root") -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if role is not None:
            headers["Authorization"] = f"Bearer {token_of(role)}"
        request = urllib.request.Request(self.broker.http_url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                status, answer = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, answer = error.code, error.read()
        return status, json.loads(answer) if answer else None

    def start(self, target: str, **more: Any) -> tuple[int, str]:
        """Status and error code of a start."""
        status, answer = self.call("POST", f"{ROOT}/start", {"targetUrl": target, **more})
        return status, "" if answer is None else answer["error"]

    def status(self) -> Any:
        code, found = self.call("GET", f"{ROOT}/status")
        assert code == 200
        assert complaints(found, STATUS) == []
        assert set(found) <= set(STATUS["properties"]), "a field without a description"
        return found

    def metrics(self) -> dict[str, float]:
        """By the end of their names."""
        headers = {"Authorization": f"Bearer {token_of('root')}"}
        request = urllib.request.Request(f"{self.broker.http_url}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            lines = response.read().decode().splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(METRICS))
        return {name.partition("{")[0].removeprefix(METRICS): float(value) for name, _, value in found}

    def wait_metrics(self, **wanted: float) -> dict[str, float]:
        deadline = time.monotonic() + ENDS_S
        while not wanted.items() <= (found := self.metrics()).items():
            assert time.monotonic() < deadline, (wanted, found)
            time.sleep(0.05)
        return found

    def ended(self) -> Any:
        deadline = time.monotonic() + ENDS_S
        while (found := self.status())["phase"] != "FAILED" and not found.get("allSwitched"):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("migration"))
    with made.broker.start():
        yield made


def put(url: str, key: str, value: bytes) -> None:
    async def write() -> None:
        async with bare_store(url, SystemClock()) as store:
            await store.put(key, value, expected=ANY)

    asyncio.run(write())


def record_of(url: str) -> str:
    async def read() -> str:
        async with bare_store(url, SystemClock()) as store:
            found = await store.get(MIGRATION)
            return "" if found is None else found.value.decode()

    return asyncio.run(read())


def test_all_calls_are_for_super_users(site: Site) -> None:
    for method, call in (("POST", "start"), ("GET", "status"), ("POST", "abort"), ("POST", "verify")):
        assert site.call(method, f"{ROOT}/{call}", role=None)[0] == 401
        assert site.call(method, f"{ROOT}/{call}", role="somebody")[0] == 403


def test_without_a_migration(site: Site) -> None:
    found = site.status()
    assert (found["phase"], found["targetUrl"], found["attempt"]) == ("NOT_STARTED", "", 1)
    for call in ("abort", "verify"):
        status, answer = site.call("POST", f"{ROOT}/{call}")
        assert (status, answer["error"]) == (409, "no-metadata-migration")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        {},
        {"targetUrl": 3},
        {"targetUrl": ""},
        {"targetUrl": "foo:bar"},
        {"targetUrl": "sqlite:///proc/no/such/place"},
        {"targetUrl": f"etcd://root:{SECRET}@127.0.0.1:1/x"},
        {"targetUrl": f"zk://root:{SECRET}/{SECRET}@127.0.0.1:1/x"},
        {"targetUrl": f"etcd://127.0.0.1:1/x?user=root&password={SECRET}"},
        {"targetUrl": f"etcd://127.0.0.1:1/x?user=root&password-file={SECRET}"},
        {"targetUrl": f"oxia://127.0.0.1:1/default?token={SECRET}"},
        {"targetUrl": f"oxia://127.0.0.1:1/default?token-file={SECRET}"},
        {"targetUrl": "oxia://127.0.0.1:1/default?token-file=/not/there"},
        {"targetUrl": "sqlite:////tmp/x", "rate": -1},
        {"targetUrl": "sqlite:////tmp/x", "rate": "fast"},
        {"targetUrl": "sqlite:////tmp/x", "rate": True},
        {"targetUrl": "sqlite:////tmp/x", "purgeTarget": "yes"},
    ],
)
def test_a_bad_start_is_refused_and_repeats_no_secret(site: Site, body: object) -> None:
    status, answer = site.call("POST", f"{ROOT}/start", body)
    assert status == 400, answer
    assert answer["reason"] and SECRET not in json.dumps(answer)
    if isinstance(body, dict) and set(body) == {"targetUrl"}:
        asked = urllib.parse.urlencode({"target": body["targetUrl"]})
        status, answer = site.call("POST", f"{ROOT}/start?{asked}")
        assert status == 400 and SECRET not in json.dumps(answer)
    assert site.status()["phase"] == "NOT_STARTED"
    assert SECRET not in site.broker.log_path.read_text()
    assert SECRET not in record_of(site.url("first"))


def test_targets_that_cannot_be_used(site: Site) -> None:
    assert site.start(site.url("first")) == (400, "bad-migration-target"), "the store in use"
    assert site.start(site.url("data/../first")) == (400, "bad-migration-target"), "by another name"
    put(site.url("full"), "/someone/else", b"1")
    assert site.start(site.url("full")) == (409, "target-not-empty")
    assert site.start(site.url("full"), purgeTarget=True) == (409, "target-not-empty"), "not ours to delete"
    assert site.status()["phase"] == "NOT_STARTED"


async def test_one_attempt_after_the_other(site: Site) -> None:
    """Abort, a second attempt, a coordinator that is killed, a retry at once, the way back; over all clients."""
    assert set(site.wait_metrics(running=0, phase=0, records=0, changed_keys=0, blocked_seconds=0)) == {
        *("running", "phase", "records", "changed_keys", "blocked_seconds")
    }
    for number in range(40):
        assert site.call("PUT", f"/admin/v2/persistent/public/default/kept-{number}")[0] == 204
    assert site.start(site.url("second"), rate=1) == (204, "")
    found = site.status()
    assert (found["phase"], found["subPhase"], found["targetUrl"]) == ("NOT_STARTED", "PRE_COPY", site.url("second"))
    assert found["counts"]["expected"] >= 40
    assert not found["isBlocked"] and found["blockedSinceMs"] is None
    assert 0 < site.wait_metrics(running=1, phase=0)["records"] < 40
    assert site.start(site.url("third")) == (409, "metadata-migration-running")
    for method, call in (("POST", "verify"), ("POST", "abort")):
        assert site.call(method, f"{ROOT}/{call}")[0] in (200, 204)
    found = site.status()
    assert (found["phase"], found["error"]) == ("FAILED", "aborted by an administrator")
    assert site.call("POST", f"{ROOT}/abort")[0] == 409
    site.wait_metrics(running=0, phase=4, blocked_seconds=0)

    # another target works at once, and so does one that the dead coordinator left half full
    assert site.start(site.url("third"), rate=1)[0] == 204
    site.broker.kill9()
    site.broker.start()
    found = site.ended()
    assert (found["phase"], found["attempt"]) == ("FAILED", 2)
    assert "has ended" in found["error"]
    assert site.start(site.url("third")) == (409, "target-not-empty")
    async with anabranch.admin.connect(site.broker.http_url, token=token_of("root")) as admin:
        await admin.metadata_migration.start(site.url("third"), rate=0, purge_target=True)
        found = await asyncio.to_thread(site.ended)
        assert (found["phase"], found["attempt"], found["error"]) == ("COMPLETED", 3, None)
        assert found["settings"] == {"metadata.url": site.url("third")}
        assert found["pending"] == [] and set(found["participants"].values()) == {"SWITCHED"}
        assert await admin.metadata_migration.status() == site.status()
        seen = await asyncio.to_thread(lambda: site.wait_metrics(running=0, phase=3, changed_keys=0))
        assert seen["records"] >= 40 and 0 < seen["blocked_seconds"] == pytest.approx(found["blockedSeconds"])
        compared = await admin.metadata_migration.verify()
        assert complaints(compared, RESULTS["POST", "/metadata/migration/verify"]) == []
        assert (compared["different"], compared["keys"]) == (0, [])
        assert compared["source_records"] == compared["target_records"] >= 40
        internal = await admin.brokers.internal_configuration()
        assert internal["metadataStoreUrl"] == site.url("third"), "the store in use, not the setting"
        with pytest.raises(Refused) as refused:
            await admin.metadata_migration.abort()
        assert (refused.value.status, refused.value.code) == (409, "no-metadata-migration")

    # back, over the blocking client; PIP-454's form of the call has the target in the query
    assert site.call("POST", f"{ROOT}/start?target={site.url('first')}")[0] == 409
    with anabranch.admin.blocking.connect(site.broker.http_url, token=token_of("root")) as blocking:
        with pytest.raises(Refused, match="earlier migration"):
            blocking.metadata_migration.start(site.url("first"))
        blocking.metadata_migration.start(site.url("first"), purge_target=True)
        assert (await asyncio.to_thread(site.ended))["phase"] == "COMPLETED"
        assert blocking.metadata_migration.verify()["different"] == 0
        assert blocking.metadata_migration.status()["targetUrl"] == site.url("first")
        with pytest.raises(Refused, match=r"has completed|no migration"):
            blocking.metadata_migration.abort()
    names = site.call("GET", "/admin/v2/persistent/public/default")[1]
    assert len([name for name in names if "/kept-" in name]) == 40
    assert site.call("POST", f"{ROOT}/start?target={site.url('fourth')}&rate=0&purgeTarget=false") == (204, None)
    assert site.ended()["phase"] == "COMPLETED"


def test_the_description_names_every_parameter(site: Site) -> None:
    paths = site.call("GET", "/openapi.json")[1]["paths"]
    start = paths[f"{ROOT}/start"]["post"]
    assert {one["name"] for one in start["parameters"]} == {"target", "rate", "purgeTarget"}
    body = start["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"targetUrl", "rate", "purgeTarget"}
    assert {f"{ROOT}/{call}" for call in ("start", "status", "abort", "verify")} <= set(paths)
    shown = paths[f"{ROOT}/status"]["get"]["responses"]["2XX"]["content"]["application/json"]["schema"]
    assert shown == STATUS
