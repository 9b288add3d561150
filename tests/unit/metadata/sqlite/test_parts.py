"""Parts of the SQLite store: events, session files, heartbeats, notifications, the schema."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    Change,
    ChangeKind,
    SessionEvent,
    StoreIncompatible,
    Versioned,
    VersionMismatch,
)
from anabranch.metadata.sqlite import change_feed as sqlite_feed
from anabranch.metadata.sqlite import change_notifier as doorbell
from anabranch.metadata.sqlite.change_notifier import MESSAGE_BYTES_MAX, ChangeNotifier
from anabranch.metadata.sqlite.event_log import EVENTS_KEPT, EncodedChange, EventLog, read_message
from anabranch.metadata.sqlite.event_log import encode_change as written
from anabranch.metadata.sqlite.schema import connect, prepare
from anabranch.metadata.sqlite.session_files import SessionFiles
from anabranch.metadata.sqlite.sessions import SqliteSession
from anabranch.metadata.sqlite.store import SqliteStore
from anabranch.metadata.sqlite.tables import REPORTED_KEYS_MAX, ROWS_PER_STATEMENT, WriteTables, common_tree
from anabranch.runtime.clock import SystemClock
from tests.support.in_memory.topic_log import ManualClock

CREATED = Change(ChangeKind.CREATED, "/a")
INVALIDATED = Change(ChangeKind.INVALIDATED, "/")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = connect(tmp_path / "metadata.db")
    prepare(connection)
    yield connection
    connection.close()


def encode_change(changes: list[Change]) -> list[EncodedChange]:
    return [written(change.kind, change.key) for change in changes]


class TestEvents:
    def test_a_reader_gets_every_change_once(self, db: sqlite3.Connection) -> None:
        log = EventLog(db)
        changes = [Change(ChangeKind.CREATED, f"/ü/{i}") for i in range(5)]
        log.append(1, encode_change(changes[:2]))
        log.append(3, encode_change(changes[2:]))
        assert log.after(0) == (5, changes)
        assert log.after(1) == (5, changes[1:])
        assert log.after(3) == (5, changes[3:])
        assert log.after(5) == (5, [])

    def test_message_equals_the_stored_event(self, db: sqlite3.Connection) -> None:
        changes = [Change(ChangeKind.DELETED, '/ü "q" \n'), CREATED]
        assert read_message(EventLog(db).append(7, encode_change(changes))) == (7, changes)

    def test_behind_the_trim_everything_is_invalid(self, db: sqlite3.Connection) -> None:
        log = EventLog(db)
        for first in range(1, EVENTS_KEPT + 4000, 1000):
            log.append(first, encode_change([CREATED]) * 1000)
        last = log.last()
        assert log.after(last - EVENTS_KEPT) == (last, [CREATED] * EVENTS_KEPT)
        log.trim()
        assert log.last() == last
        assert log.after(last - 1500) == (last, [CREATED] * 1500)
        assert log.after(5) == (last, [INVALIDATED])
        db.execute("DELETE FROM event WHERE last<=?", (last - 2000,))
        assert log.after(last - 2500) == (last, [INVALIDATED, *[CREATED] * 2000])
        db.execute("DELETE FROM event WHERE last<?", (last,))
        log.trim()
        assert log.last() == last, "the numbers must go on after a trim"


class TestGroups:
    """Plain puts that arrive together are one statement, with the same result as single ones."""

    async def test_refused_write_does_not_affect_others(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            keys = [f"/g/{i}" for i in range(20)]
            versions = [await store.put(key, b"0", expected=ABSENT) for key in keys]
            watch = store.watch("/g")
            given = [version + (i == 7) * 1000 for i, version in enumerate(versions)]
            found = await asyncio.gather(
                *(store.put(key, b"1", expected=version) for key, version in zip(keys, given, strict=True)),
                return_exceptions=True,
            )
            assert [i for i, one in enumerate(found) if isinstance(one, VersionMismatch)] == [7]
            after = [await store.get(key) for key in keys]
            assert [one.value for one in after if one] == [b"0" if i == 7 else b"1" for i in range(20)]
            assert [one.version for one in after if one] == [versions[7] if i == 7 else found[i] for i in range(20)]
            keys_seen = [(await asyncio.wait_for(anext(watch), 5)).key for _ in range(19)]
            assert keys_seen == [key for key in keys if key != "/g/7"]

    async def test_only_one_of_several_with_the_same_key_wins(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            version = await store.put("/g", b"", expected=ABSENT)
            found = await asyncio.gather(
                *(store.put("/g", b"%d" % i, expected=version) for i in range(10)), return_exceptions=True
            )
            assert [isinstance(one, VersionMismatch) for one in found] == [False] + [True] * 9

    async def test_a_key_of_a_session_is_put_by_version_too(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            session = await store.open_session(60_000)
            versions = [await store.put(f"/g/{i}", b"", expected=ABSENT, session=session) for i in range(8)]
            await asyncio.gather(*(store.put(f"/g/{i}", b"", expected=versions[i]) for i in range(8)))
            await session.close()
            assert len(await store.children("/g")) == 8

    async def test_together_they_are_as_durable_and_numbered_as_alone(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            versions = [await store.put(f"/g/{i}", b"", expected=ABSENT) for i in range(10)]
            mixed = await asyncio.gather(
                *(store.put(f"/g/{i}", b"x", expected=versions[i]) for i in range(10)),
                store.put("/new", b"", expected=ABSENT),
                *(store.put(f"/any/{i}", b"", expected=ANY) for i in range(3)),
            )
            assert len(set(mixed) | set(versions)) == 24
            found = {key: item.version async for key, item in store.scan("/")}
        async with SqliteStore(tmp_path, SystemClock()) as store:
            assert {key: item.version async for key, item in store.scan("/")} == found


class TestBulkChanges:
    def changes(self, db: sqlite3.Connection, count: int) -> list[Change]:
        table = WriteTables(db)
        table.begin()
        table.write_over([(f"/t/x/{i}", Versioned(b"", 0, 0, 0, False)) for i in range(count)], False, 1)
        _, changes, _ = table.end()
        db.execute("COMMIT")
        return [Change(kind, key) for kind, key, _ in changes]

    def test_few_bulk_changes_are_reported_by_key(self, db: sqlite3.Connection) -> None:
        assert self.changes(db, 1) == [Change(ChangeKind.CREATED, "/t/x/0")]
        assert self.changes(db, 2) == [Change(ChangeKind.MODIFIED, "/t/x/0"), Change(ChangeKind.CREATED, "/t/x/1")]

    def test_many_bulk_changes_are_reported_as_one(self, db: sqlite3.Connection) -> None:
        assert self.changes(db, REPORTED_KEYS_MAX + 1) == [Change(ChangeKind.INVALIDATED, "/t/x")]

    @pytest.mark.parametrize("parameters_max", [999, 250_000])
    def test_more_keys_than_a_statement_has_parameters_are_written(
        self, db: sqlite3.Connection, parameters_max: int
    ) -> None:
        """999 is the least that a build of SQLite allows."""
        db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, parameters_max)
        count = ROWS_PER_STATEMENT + 1
        assert self.changes(db, count) == [Change(ChangeKind.CREATED, f"/t/x/{i}") for i in range(count)]
        assert self.changes(db, count)[-1] == Change(ChangeKind.MODIFIED, f"/t/x/{count - 1}")

    def test_the_common_tree_holds_all_keys(self) -> None:
        assert common_tree(["/a/b/c", "/a/b/d"]) == "/a/b"
        assert common_tree(["/a/b", "/a/bc"]) == "/a"
        assert common_tree(["/a/b", "/a/b/c"]) == "/a"
        assert common_tree(["/a", "/b"]) == "/"


class TestSessionFiles:
    def test_locked_file_with_recent_heartbeat_is_alive(self, tmp_path: Path) -> None:
        mine, others = SessionFiles(tmp_path), SessionFiles(tmp_path)
        mine.create(1, 1000, 100.0)
        assert others.next_deadline() == pytest.approx(101)
        assert others.find_dead([1], 100.9) == []
        assert others.find_dead([1], 101.1) == [1]
        mine.heartbeat(1, 1000, 100.5)
        assert others.find_dead([1], 101.1) == []
        assert mine.find_dead([1], 999.0) == [], "own sessions are never ended"
        mine.remove(1)
        assert others.find_dead([1], 0.0) == [1], "known, but without a file"
        assert others.find_dead([], 0.0) == []
        assert os.listdir(tmp_path) == []

    def test_unlocked_file_is_dead_despite_recent_heartbeat(self, tmp_path: Path) -> None:
        mine, others = SessionFiles(tmp_path), SessionFiles(tmp_path)
        mine.create(7, 1_000_000, 100.0)
        mine.after_fork()  # closes without removing, as death does
        assert others.find_dead([7], 100.0) == [7]

    def test_a_file_without_heartbeat_counts_by_its_lock(self, tmp_path: Path) -> None:
        mine, others = SessionFiles(tmp_path), SessionFiles(tmp_path)
        mine.create(7, 1000, 100.0)
        os.truncate(tmp_path / "7", 0)
        assert others.next_deadline() == float("inf")
        assert others.find_dead([7], 1e9) == []


class SlowClock(ManualClock):
    """Jumps during a read if requested, as if the process was stopped between two instructions."""

    stop_s = 0.0

    def monotonic(self) -> float:
        now = super().monotonic()
        self.seconds += self.stop_s
        return now


Observed = tuple[SqliteSession, list[SqliteSession], list[SessionEvent]]


class TestHeartbeat:
    def session(
        self, folder: Path, clock: ManualClock
    ) -> tuple[SqliteSession, list[SqliteSession], list[SessionEvent]]:
        asked: list[SqliteSession] = []
        events: list[SessionEvent] = []

        async def close(session: SqliteSession) -> None:
            session.stop()

        files = SessionFiles(folder)
        born = clock.seconds
        files.create(1, 1000, born)
        session = SqliteSession(1, 1000, born, clock, files, close, asked.append)
        session.listen(events.append)
        session.schedule_heartbeat()
        return session, asked, events

    def test_timely_heartbeat_extends_validity(self, tmp_path: Path) -> None:
        clock = ManualClock()
        session, asked, events = self.session(tmp_path, clock)
        for _ in range(20):
            clock.advance(0.25)
            assert session.valid_until == pytest.approx(clock.seconds + 1)
            assert SessionFiles(tmp_path).next_deadline() == pytest.approx(session.valid_until)
        assert (asked, events) == ([], [])

    def test_late_heartbeat_queries_the_database(self, tmp_path: Path) -> None:
        clock = ManualClock()
        session, asked, events = self.session(tmp_path, clock)
        trusted = session.valid_until
        clock.advance(5)
        assert session.valid_until == trusted
        assert (asked, events) == ([session], [SessionEvent.DISCONNECTED])
        clock.advance(1)
        assert asked == [session], "asked once, until there is an answer"
        session.on_revived(clock.seconds)
        assert session.valid_until == pytest.approx(clock.seconds + 1)
        assert events[1:] == [SessionEvent.RECONNECTED]

    def test_heartbeat_interrupted_by_a_stop_proves_nothing(self, tmp_path: Path) -> None:
        clock = SlowClock()
        session, asked, _ = self.session(tmp_path, clock)
        trusted = session.valid_until
        clock.advance(0.2)
        clock.stop_s = 5
        clock.advance(0.1)
        assert session.valid_until == trusted
        assert asked == [session]


class TestBell:
    def test_messages_are_whole_or_nothing(self, tmp_path: Path) -> None:
        bell, other = ChangeNotifier(tmp_path / "bell", tmp_path), ChangeNotifier(tmp_path / "bell", tmp_path)
        assert other.message() == b""
        bell.notify(b"1 long message")
        assert other.message() == b"1 long message"
        bell.notify(b"2")
        assert other.message() == b"2"
        bell.notify(b"x" * MESSAGE_BYTES_MAX)
        assert other.message() == b"x" * MESSAGE_BYTES_MAX
        bell.notify(b"x" * (MESSAGE_BYTES_MAX + 1))
        assert other.message() == b""
        bell.notify(b"good")
        with (tmp_path / "bell").open("r+b") as torn:
            torn.seek(9)
            torn.write(b"?")
        assert other.message() == b""
        bell.close()
        other.close()

    async def test_without_inotify_changes_are_polled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def none() -> None:
            raise OSError("no inotify here")

        monkeypatch.setattr(doorbell, "_Inotify", none)
        async with SqliteStore(tmp_path, SystemClock()) as one, SqliteStore(tmp_path, SystemClock()) as two:
            watch = two.watch("/")
            await one.put("/a", b"", expected=ABSENT)
            assert await asyncio.wait_for(anext(watch), 10) == CREATED


def descriptors(folder: Path) -> dict[int, str]:
    """Files below a folder that this process has open."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the one that lists
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: path for fd, path in found.items() if path.startswith(str(folder))}


class TestFeed:
    async def test_notification_arrives_before_the_poll(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_feed, "POLL_S", 3600.0)
        async with SqliteStore(tmp_path, SystemClock()) as one, SqliteStore(tmp_path, SystemClock()) as two:
            watch = two.watch("/")
            for key in ("/a", "/b", "/" + "long" * 2000):
                await one.put(key, b"", expected=ABSENT)
                assert await asyncio.wait_for(anext(watch), 10) == Change(ChangeKind.CREATED, key)

    async def test_missed_notification_loses_no_change(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The notification file has only the last message; earlier changes are read from the table."""
        monkeypatch.setattr(sqlite_feed, "POLL_S", 3600.0)
        async with SqliteStore(tmp_path, SystemClock()) as one, SqliteStore(tmp_path, SystemClock()) as two:
            watch = two.watch("/")
            assert two._writer is not None
            two._writer.notifier.set_notified(False)
            for key in ("/a", "/b"):
                await one.put(key, b"", expected=ABSENT)
            two._writer.notifier.set_notified(True)
            for key in ("/c", "/d"):
                await one.put(key, b"", expected=ABSENT)
            seen = [(await asyncio.wait_for(anext(watch), 10)).key for _ in range(4)]
            assert seen == ["/a", "/b", "/c", "/d"]


class TestFile:
    async def test_views_show_keys_changes_and_sessions(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            session = await store.open_session(9_000)
            version = await store.put("/a/b", b"text", expected=ABSENT, session=session)
            db = sqlite3.connect(f"file:{tmp_path / 'metadata.db'}?mode=ro", uri=True)
            assert db.execute("SELECT key, version, bytes, text FROM keys").fetchall() == [("/a/b", version, 4, "text")]
            assert db.execute("SELECT number, kind, key FROM changes").fetchall() == [(version, "created", "/a/b")]
            assert db.execute("SELECT pid, ttl_ms, keys FROM sessions").fetchall() == [(os.getpid(), 9_000, 1)]
            db.close()

    async def test_format_1_becomes_this_one(self, tmp_path: Path) -> None:
        db = sqlite3.connect(tmp_path / "metadata.db")
        db.executescript(
            """CREATE TABLE node(
              id INTEGER PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
              created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, session INTEGER, value BLOB NOT NULL,
              UNIQUE(parent, name));
            CREATE INDEX node_session ON node(session) WHERE session IS NOT NULL;
            CREATE TABLE event(seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, path TEXT NOT NULL);
            CREATE TABLE session(id INTEGER PRIMARY KEY AUTOINCREMENT, created_ms INTEGER NOT NULL);
            INSERT INTO event(seq, kind, path) VALUES(41, 'created', '/live/x'), (42, 'created', '/a');
            INSERT INTO session(id, created_ms) VALUES(1, 5);
            INSERT INTO node(parent, name, version, created_ms, modified_ms, session, value)
              VALUES('', 'a', 42, 1, 2, NULL, x'61'), ('/live', 'x', 41, 1, 2, 1, x'');
            PRAGMA application_id=1634623842; PRAGMA user_version=1;"""
        )
        db.close()
        async with SqliteStore(tmp_path, SystemClock()) as store:
            assert [item async for item in store.scan("/")] == [("/a", Versioned(b"a", 42, 1, 2, False))]
            with pytest.raises(VersionMismatch):
                await store.put("/a", b"", expected=41)
            assert await store.put("/a", b"", expected=42) == 43
        async with SqliteStore(tmp_path, SystemClock()) as store:
            assert await store.get("/a") is not None

    async def test_database_of_another_program_is_refused(self, tmp_path: Path) -> None:
        db = sqlite3.connect(tmp_path / "metadata.db")
        db.execute("CREATE TABLE mine(x)")
        db.close()
        with pytest.raises(StoreIncompatible, match="another program"):
            await SqliteStore(tmp_path, SystemClock()).open()

    async def test_sessions_from_before_a_reboot_are_swept(self, tmp_path: Path) -> None:
        """The monotonic clock started again, so old heartbeats are in the future; but the files are not locked."""
        async with SqliteStore(tmp_path, SystemClock()):
            pass
        db = sqlite3.connect(tmp_path / "metadata.db")
        db.execute("INSERT INTO session(id, created_ms, ttl_ms, pid) VALUES(5, 1, 60000, 1), (6, 1, 60000, 1)")
        db.execute(
            "INSERT INTO node(parent, name, version, created_ms, modified_ms, session, value)"
            " VALUES('/live', 'x', 1, 1, 1, 5, x''), ('/live', 'y', 2, 1, 1, 6, x'')"
        )
        db.commit()
        db.close()
        left = SessionFiles(tmp_path / "sessions")
        left.create(5, 60_000, 1e9)
        left.after_fork()
        async with SqliteStore(tmp_path, SystemClock()) as store:
            assert await store.children("/live") == []
            await store.put("/live/x", b"", expected=ABSENT)
        assert os.listdir(tmp_path / "sessions") == []

    async def test_no_descriptor_reaches_another_program(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            session = await store.open_session(1_000)
            await store.put("/a", b"", expected=ANY, session=session)
            mine = descriptors(tmp_path)
            assert {Path(path).name for path in mine.values()} >= {"writer.lock", "bell", "metadata.db", "1"}
            assert [path for fd, path in mine.items() if os.get_inheritable(fd)] == []
        assert descriptors(tmp_path) == {}

    async def test_session_of_cancelled_opening_is_ended(self, tmp_path: Path) -> None:
        async with SqliteStore(tmp_path, SystemClock()) as store:
            opening = asyncio.ensure_future(store.open_session(60_000))
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await store.put("/a", b"", expected=ANY)
            await store.put("/a", b"", expected=ANY)
            assert os.listdir(tmp_path / "sessions") == []
