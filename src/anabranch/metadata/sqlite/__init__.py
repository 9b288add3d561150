"""Embedded backend: one SQLite file, shared by the processes of one machine.

| module | what it is |
|---|---|
| `store` | the store |
| `write_queue` | the event loop's side of the writer |
| `writer` | the thread that turns queued writes into group commits |
| `tables` | SQL statements on keys and sessions |
| `schema` | tables, format number, upgrade |
| `event_log` | the stored log of changes |
| `change_feed` | changes of all processes to the watches of this one |
| `change_notifier` | wakes other processes after a commit (inotify) |
| `sessions` | sessions and their heartbeats |
| `session_files` | one locked file per session |
| `file_lock` | the writer lock |
| `fork_guard` | releases inherited files in a forked child |
| `wal_file` | keeps the write-ahead log at a fixed length |
"""
