"""Settings of the embedded store: values and their bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

KIB = 1 << 10
MIB = 1 << 20
_BROKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SYNC = re.compile(r"group|none|linger:(\d{1,5})ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    dir: Path = field(metadata={"help": "data directory (volume)"})
    url: str = field(
        default="",
        metadata={"help": "bookkeeper://HOST:PORT/ROOT?…: ledgers on bookies; empty = files below storage.dir"},
    )
    broker_id: str = field(default="standalone", metadata={"help": "name of this broker inside the data directory"})
    sync: str = field(
        default="group",
        metadata={
            "help": "group: fdatasync per group; linger:Nms: gather larger groups; none: a power cut loses receipts"
        },
    )
    log_bytes_max: int = field(
        default=64 * MIB,
        metadata={"help": "a log file is rolled and checkpointed past this; recovery reads about this much"},
    )
    cache_bytes: int = field(
        default=32 * MIB, metadata={"help": "recent entries kept in memory for readers that keep up"}
    )
    direct_bytes_min: int = field(
        default=256 * KIB, metadata={"help": "a ledger with this much in one group bypasses the commit log"}
    )
    index_step_bytes: int = field(default=256 * KIB, metadata={"help": "one index point per this many bytes …"})
    index_step_entries: int = field(default=1024, metadata={"help": "… or per this many entries"})
    write_behind_ms: int = field(
        default=1000, metadata={"help": "longest time an entry waits in memory for its ledger file"}
    )
    write_behind_bytes: int = field(
        default=256 * KIB, metadata={"help": "per ledger: its file is written once this much waits"}
    )
    write_behind_bytes_max: int = field(
        default=48 * MIB, metadata={"help": "over all ledgers: groups wait while more than this is unwritten"}
    )
    open_files_max: int = field(default=256, metadata={"help": "ledger files kept open"})
    reserve_bytes: int = field(
        default=MIB, metadata={"help": "space kept back for deletion and recovery on a full device"}
    )
    probe_ms: int = field(default=200, metadata={"help": "how often a full device is tried again"})

    def __post_init__(self) -> None:
        complaints = [
            text
            for wrong, text in (
                (not _BROKER_ID.fullmatch(self.broker_id), "storage.broker_id: letters, digits, '.', '_' and '-' only"),
                (not _SYNC.fullmatch(self.sync), 'storage.sync: "group", "linger:Nms" or "none"'),
                (self.log_bytes_max < 64 * KIB, "storage.log_bytes_max: at least 64 KiB"),
                (self.cache_bytes < 0, "storage.cache_bytes: not negative"),
                (self.direct_bytes_min < 1, "storage.direct_bytes_min: at least 1"),
                (self.index_step_bytes < 1, "storage.index_step_bytes: at least 1"),
                (self.index_step_entries < 1, "storage.index_step_entries: at least 1"),
                (self.write_behind_ms < 1, "storage.write_behind_ms: at least 1"),
                (self.write_behind_bytes < 1, "storage.write_behind_bytes: at least 1"),
                (self.write_behind_bytes_max < 64 * KIB, "storage.write_behind_bytes_max: at least 64 KiB"),
                (self.open_files_max < 8, "storage.open_files_max: at least 8"),
                (self.reserve_bytes < 1, "storage.reserve_bytes: at least 1"),
                (self.probe_ms < 1, "storage.probe_ms: at least 1"),
            )
            if wrong
        ]
        if complaints:
            raise ValueError("; ".join(complaints))

    @property
    def linger_ms(self) -> int:
        match = _SYNC.fullmatch(self.sync)
        return int(match[1]) if match and match[1] else 0

    @property
    def is_synced(self) -> bool:
        return self.sync != "none"
