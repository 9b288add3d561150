"""Tables of the SQLite store, their format number, and the upgrade of older files.

    node(parent, name, …)        one row per key; "/a/b" is parent "/a", name "b" (with rowid: a third of the size)
    event(last, first, changes)  one row per commit: its changes numbered first…last, as JSON [[kind, key], …]
    session(id, ttl_ms, pid)     owners of ephemeral keys

The number of a change is the key's new version, so versions are never reused. The views `keys`, `changes` and
`sessions` are for people with the `sqlite3` shell. Synchronous; call it under the writer lock.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from anabranch.metadata.interface import StoreIncompatible

FORMAT = 2
DATABASE = "metadata.db"
BUSY_MS = 10_000  # only a writer without the writer lock causes waiting, such as a person with a shell
_APPLICATION_ID = 0x616E6162  # "anab"

_NODE = """
CREATE TABLE node(
  id INTEGER PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
  created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, session INTEGER, value BLOB NOT NULL,
  UNIQUE(parent, name));
CREATE INDEX node_session ON node(session) WHERE session IS NOT NULL;
"""

_REST = """
CREATE TABLE event(last INTEGER PRIMARY KEY, first INTEGER NOT NULL, changes TEXT NOT NULL);
CREATE TABLE session(
  id INTEGER PRIMARY KEY AUTOINCREMENT, created_ms INTEGER NOT NULL, ttl_ms INTEGER NOT NULL, pid INTEGER NOT NULL);
CREATE VIEW keys AS SELECT
  parent || '/' || name AS key, version, length(value) AS bytes, CAST(value AS TEXT) AS text, session,
  strftime('%Y-%m-%d %H:%M:%S', created_ms / 1000, 'unixepoch') AS created,
  strftime('%Y-%m-%d %H:%M:%S', modified_ms / 1000, 'unixepoch') AS modified
  FROM node ORDER BY 1;
CREATE VIEW changes AS SELECT
  event.first + one.key AS number, json_extract(one.value, '$[0]') AS kind, json_extract(one.value, '$[1]') AS key
  FROM event, json_each(event.changes) AS one;
CREATE VIEW sessions AS SELECT
  session.id, session.pid, session.ttl_ms, strftime('%Y-%m-%d %H:%M:%S', session.created_ms / 1000, 'unixepoch')
  AS created, (SELECT count(*) FROM node WHERE node.session = session.id) AS keys
  FROM session;
"""

_FROM_1 = f"""
CREATE TEMP TABLE kept AS SELECT coalesce(max(seq), 0) AS last FROM main.sqlite_sequence WHERE name = 'event';
DROP TABLE main.event;
DROP TABLE main.session;
{_REST}
INSERT INTO event(last, first, changes) SELECT last, last, '[["invalidated", "/"]]' FROM kept WHERE last > 0;
DROP TABLE kept;
DELETE FROM node WHERE session IS NOT NULL;
"""
"""Format 1 had one event row per change, and sessions without ttl, which are dropped."""


def connect(path: Path) -> sqlite3.Connection:
    """Open with the settings that all connections need. Opening may recover the WAL."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")  # checkpoints only under the writer lock: see writer.py
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA mmap_size=0")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file or upgrade an older one; refuse a newer format and foreign files."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (found or tables) and owner != _APPLICATION_ID:
        raise StoreIncompatible("the file metadata.db is a database of another program")
    if found > FORMAT:
        raise StoreIncompatible(f"metadata format {found} is newer than {FORMAT}, the newest of this release")
    steps = {0: _NODE + _REST, 1: _FROM_1}.get(found)
    if steps is not None:
        connection.executescript(
            f"BEGIN IMMEDIATE; {steps} PRAGMA application_id={_APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT;"
        )
