"""Networked stores that demand TLS, a client certificate and credentials: the right ones, wrong ones, and moves."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.metadata.interface import ABSENT, ANY, Change, ChangeKind, SessionEvent, StoreUnavailable
from anabranch.metadata.migration.record import MIGRATION
from anabranch.metadata.migration.service import BadTarget
from anabranch.metadata.open import open_store
from anabranch.metadata.store_security import CredentialsUnreadable, TlsFailed
from anabranch.metadata.transfer import Tally, check_archive, export_lines, import_lines
from anabranch.model.errors import Error, NotAllowed
from anabranch.runtime.clock import SystemClock
from tests.services.secured import PASSWORD, SecuredServer, secured
from tests.support.faults.migrating_processes import processes
from tests.support.in_memory.credentials import Authority
from tests.support.in_memory.metadata_stores import must_get

KINDS = ("zk", "etcd", "oxia")
PATH = {"zk": "/mine", "etcd": "/mine", "oxia": "/default/mine"}
AT_ONCE_S = 4.0
"""Half of the deadline of one operation: a failure before it did not wait for that deadline."""


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with secured(request.param, tmp_path_factory.mktemp(f"secured-{request.param}")) as made:
        yield made


async def refusal(url: str) -> tuple[Error, float]:
    """The error of opening `url` and writing there, and the seconds it took."""
    started = time.monotonic()
    with pytest.raises(Error) as caught:
        async with open_store(url, SystemClock()) as store:
            await store.put("/refused", b"1", expected=ANY)
    assert PASSWORD not in str(caught.value)
    return caught.value, time.monotonic() - started


async def test_all_of_the_port_works_with_tls_and_credentials(server: SecuredServer) -> None:
    url = server.url(PATH[server.kind])
    async with open_store(url, SystemClock()) as one, open_store(url, SystemClock()) as two:
        watch = two.watch("/a")
        version = await one.put("/a/b", b"1", expected=ABSENT)
        assert (await must_get(two, "/a/b")).value == b"1"
        assert await asyncio.wait_for(anext(watch), 30) == Change(ChangeKind.CREATED, "/a/b")
        await two.put("/a/b", b"2", expected=version)
        session = await one.open_session(3000)
        events: list[SessionEvent] = []
        session.listen(events.append)
        await one.put("/a/alive", b"me", expected=ABSENT, session=session)
        await asyncio.sleep(3.5)  # longer than the session lives without keep-alives, and etcd's token without use
        assert (await must_get(two, "/a/alive")).ephemeral
        assert events == []
        await session.close()
        assert await two.get("/a/alive") is None, "the end of a session deletes its keys"
        watch.close()


async def test_a_foreign_authority_is_refused_at_once(server: SecuredServer, tmp_path: Path) -> None:
    foreign = Authority(tmp_path, "foreign")
    error, seconds = await refusal(server.url(PATH[server.kind], ca=str(foreign.path)))
    assert isinstance(error, TlsFailed)
    assert seconds < AT_ONCE_S


async def test_a_certificate_for_another_name_is_refused_at_once(server: SecuredServer) -> None:
    error, seconds = await refusal(server.url(PATH[server.kind], server_name="other.example"))
    assert isinstance(error, TlsFailed)
    assert seconds < AT_ONCE_S


async def test_the_name_in_the_certificate_can_be_given(server: SecuredServer) -> None:
    async with open_store(server.url(PATH[server.kind], server_name="localhost"), SystemClock()) as store:
        await store.put("/named", b"1", expected=ANY)


async def test_a_client_without_certificate_is_refused(server: SecuredServer) -> None:
    error, _ = await refusal(server.url(PATH[server.kind], cert=None, key=None))
    assert isinstance(error, StoreUnavailable)


async def test_wrong_credentials_are_refused_with_a_clear_error(server: SecuredServer) -> None:
    async with open_store(server.url(PATH[server.kind]), SystemClock()) as store:
        await store.put("/guarded", b"1", expected=ANY)
    name = "token-file" if server.kind == "oxia" else "password-file"
    wrong = server.secret("wrong", "not.the.secret")
    error, seconds = await refusal(server.url(PATH[server.kind], **{name: wrong}))
    assert isinstance(error, NotAllowed)
    assert "not.the.secret" not in str(error)
    assert seconds < AT_ONCE_S


async def test_a_client_without_credentials_is_refused(server: SecuredServer) -> None:
    left_out: dict[str, str | None] = dict.fromkeys(("user", "password-file", "token-file"))
    error, _ = await refusal(server.url(PATH[server.kind], **left_out))
    assert isinstance(error, NotAllowed | StoreUnavailable)


async def test_missing_files_are_named(server: SecuredServer) -> None:
    name = "token-file" if server.kind == "oxia" else "password-file"
    for option in ("ca", name):
        error, seconds = await refusal(server.url(PATH[server.kind], **{option: "/not/there"}))
        assert isinstance(error, CredentialsUnreadable)
        assert "/not/there" in str(error)
        assert seconds < AT_ONCE_S


async def test_records_move_between_secured_stores(server: SecuredServer, tmp_path: Path) -> None:
    """To SQLite and back to another path, with versions; both bulk interfaces go through TLS and credentials."""
    path = PATH[server.kind]
    async with open_store(server.url(path), SystemClock()) as source:
        version = await source.put("/moved/one", b"1", expected=ANY)
    middle, back = f"sqlite:///{tmp_path / 'middle'}", server.url(f"{path}-again")
    for origin, goal in ((server.url(path), middle), (middle, back)):
        async with open_store(origin, SystemClock()) as source, open_store(goal, SystemClock()) as target:
            lines = [line async for line in export_lines(source, "/moved", Tally())]
            await import_lines(target, lines, check_archive(lines), Tally(), merge=False, preserve=True)
    async with open_store(back, SystemClock()) as store:
        assert (await must_get(store, "/moved/one")).value == b"1"
        await store.put("/moved/one", b"2", expected=version)


async def test_a_running_cluster_moves_between_secured_stores(
    server: SecuredServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes with a session; no secret in the record, the status, an error or the log."""
    caplog.set_level(logging.DEBUG)
    first, second = (server.url(f"{PATH[server.kind]}-{name}") for name in ("first", "second"))
    name = "token-file" if server.kind == "oxia" else "password-file"
    secret = Path(server.options[name]).read_text().strip()
    shown: list[str] = []
    async with processes(f"sqlite:///{tmp_path / 'from'}", 2) as made:
        stores = [one.store for one in made]
        version = await stores[0].put("/kept", b"1", expected=ABSENT)
        session = await stores[1].open_session(5_000)
        await stores[1].put("/lock", b"2", expected=ABSENT, session=session)
        if server.kind != "zk":  # there, any name and password are a user, who may make nodes of their own
            wrong = server.url(f"{PATH[server.kind]}-first", **{name: server.secret("wrong-one", "not.the.secret")})
            with pytest.raises(BadTarget) as refused:
                await made[0].migration.start(wrong)
            assert "not.the.secret" not in str(refused.value)
        for url in (first, second):
            status = await made[0].move(url, rate=0)
            assert (status["phase"], status["error"]) == ("COMPLETED", None)
            assert await made[1].migration.verify() | {"keys": ()} == {
                "source_records": 1,
                "target_records": 1,
                "different": 0,
                "keys": (),
            }
            shown += [json.dumps(status), (await must_get(stores[0].inner, MIGRATION)).value.decode()]
        await stores[1].put("/kept", b"2", expected=version)
        assert (await must_get(stores[0], "/lock")).ephemeral
        assert not session.is_lost
    assert secret not in "".join(shown)
    assert secret not in caplog.text


@pytest.mark.parametrize("server", [pytest.param("zk", marks=pytest.mark.xdist_group("zk"))], indirect=True)
async def test_nodes_of_a_zookeeper_user_are_closed_to_others(server: SecuredServer) -> None:
    async with open_store(server.url("/own"), SystemClock()) as store:
        await store.put("/one", b"1", expected=ANY)
    other = server.secret("other", "another word")
    error, _ = await refusal(server.url("/own", user="other", password_file=other))
    assert isinstance(error, NotAllowed)
