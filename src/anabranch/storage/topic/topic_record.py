"""The metadata record of one topic: its ledgers in order, and the epoch of its owner. Values and JSON only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from anabranch.model.errors import Error
from anabranch.model.position import EARLIEST, Position
from anabranch.storage.ledger.ledger_chain import ChainLedger, LedgerChain
from anabranch.storage.topic.compacted_view import CompactedRow

FORMAT = 1


class BadTopicRecord(Error):
    """A topic record that this version cannot read."""

    code = "bad-topic-record"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One data ledger. `entries` is None until its length is final."""

    id: int
    entries: int | None = None
    messages: int = 0
    bytes: int = 0
    file_bytes: int = 0
    sealed_at_ms: int = 0
    last_publish_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicRecord:
    epoch: int = 1  # topic epoch: raised by each owner when it opens the topic; a lower one is fenced
    ledgers: tuple[LedgerRow, ...] = ()
    state_ledgers: tuple[int, ...] = ()  # replayed in order; the last one belongs to the current owner
    garbage: tuple[int, ...] = ()  # unused ledgers whose files may still exist
    trimmed_messages: int = 0
    last: Position = EARLIEST  # last sealed entry, trimmed or not
    terminated_at: Position | None = None
    is_deleted: bool = False  # point of no return of a deletion: ledgers are deleted, then the record
    properties: Mapping[str, str] = field(default_factory=dict)
    compacted: CompactedRow | None = None
    compacting: int | None = None  # ledger of a compacted view that is not complete yet
    origin: int = 0  # first ledger id of the topic; differs after it is created again; 0: not known
    trimmed_to: Position = EARLIEST  # last entry dropped by retention
    ownership_epoch: int = 0  # of the last owner in a cluster; a former owner must not open the topic again
    created_ms: int = 0  # 0: created by a version that did not record it
    leaves_tombstone: bool = False  # the record of a deleted topic stays, with its properties and ownership epoch

    @property
    def is_tombstone(self) -> bool:
        """Record of a topic that was deleted completely, or that never existed."""
        return self.is_deleted and self.leaves_tombstone and not (self.ledgers or self.state_ledgers or self.garbage)


def encode_record(record: TopicRecord) -> bytes:
    value: dict[str, Any] = {
        "format": FORMAT,
        "epoch": record.epoch,
        "ledgers": [_row_json(row) for row in record.ledgers],
        "stateLedgers": list(record.state_ledgers),
        "garbage": list(record.garbage),
        "trimmedMessages": record.trimmed_messages,
        "last": list(record.last),
        "properties": dict(record.properties),
    }
    if record.terminated_at is not None:
        value["terminatedAt"] = list(record.terminated_at)
    if record.is_deleted:
        value["deleted"] = True
    if record.leaves_tombstone:
        value["grave"] = True
    if record.compacted is not None:
        value["compacted"] = record.compacted.dump()
    if record.compacting is not None:
        value["compacting"] = record.compacting
    if record.origin:
        value["origin"] = record.origin
    if record.created_ms:
        value["createdMs"] = record.created_ms
    if record.trimmed_to != EARLIEST:
        value["trimmedTo"] = list(record.trimmed_to)
    if record.ownership_epoch:
        value["tenure"] = record.ownership_epoch
    return json.dumps(value, separators=(",", ":")).encode()


def decode_record(data: bytes) -> TopicRecord:
    try:
        value = json.loads(data)
        if value["format"] != FORMAT:
            raise BadTopicRecord(f"topic record of format {value['format']}, this version reads {FORMAT}")
        terminated, compacted, compacting = (value.get(key) for key in ("terminatedAt", "compacted", "compacting"))
        return TopicRecord(
            epoch=int(value["epoch"]),
            ledgers=tuple(_row(row) for row in value["ledgers"]),
            state_ledgers=tuple(value["stateLedgers"]),
            garbage=tuple(value["garbage"]),
            trimmed_messages=int(value["trimmedMessages"]),
            last=Position(*value["last"]),
            terminated_at=None if terminated is None else Position(*terminated),
            is_deleted=bool(value.get("deleted", False)),
            properties=dict(value["properties"]),
            compacted=None if compacted is None else CompactedRow.load(compacted),
            compacting=None if compacting is None else int(compacting),
            origin=int(value.get("origin", 0)),
            created_ms=int(value.get("createdMs", 0)),
            trimmed_to=Position(*value.get("trimmedTo", EARLIEST)),
            ownership_epoch=int(value.get("tenure", 0)),
            leaves_tombstone=bool(value.get("grave", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadTopicRecord(f"topic record cannot be read: {error!r}") from error


class LedgerUse(NamedTuple):
    topic: str
    kind: str  # data, state, old-state, garbage, compacted, compacting


def ledgers_of(record: TopicRecord) -> dict[int, str]:
    """Every ledger that the record names, with the kind of its use."""
    named = dict.fromkeys(record.garbage, "garbage")
    named.update(dict.fromkeys(record.state_ledgers[:-1], "old-state"))
    named.update(dict.fromkeys(record.state_ledgers[-1:], "state"))
    named.update((row.id, "data") for row in record.ledgers)
    if record.compacted is not None:
        named[record.compacted.ledger] = "compacted"
    if record.compacting is not None:
        named[record.compacting] = "compacting"
    return named


def tombstone_of(record: TopicRecord, properties: Mapping[str, str]) -> TopicRecord:
    """The record that remains after a deletion."""
    return TopicRecord(
        epoch=record.epoch,
        is_deleted=True,
        leaves_tombstone=True,
        properties=dict(properties),
        ownership_epoch=record.ownership_epoch,
    )


def row_of(info: ChainLedger) -> LedgerRow:
    if not info.sealed:
        return LedgerRow(info.id)
    return LedgerRow(
        info.id, info.entries, info.messages, info.bytes, info.file_bytes, info.sealed_at_ms, info.last_publish_ms
    )


def chain_of(record: TopicRecord) -> LedgerChain:
    """The chain of a record whose ledgers are all sealed; empty ledgers are omitted."""
    return LedgerChain(
        (
            ChainLedger(
                row.id,
                row.entries,
                row.messages,
                row.bytes,
                row.file_bytes,
                sealed=True,
                sealed_at_ms=row.sealed_at_ms,
                last_publish_ms=row.last_publish_ms,
            )
            for row in record.ledgers
            if row.entries
        ),
        trimmed_messages=record.trimmed_messages,
        trimmed_to=record.trimmed_to,
        last=record.last,
    )


def with_chain(record: TopicRecord, chain: LedgerChain, *, next_ledger: int | None = None) -> TopicRecord:
    """The record updated from a chain; `next_ledger` is announced before the switch to it."""
    rows = tuple(row_of(info) for info in chain if info.entries or not info.sealed)
    if next_ledger is not None and (not rows or rows[-1].id < next_ledger):
        rows = (*rows, LedgerRow(next_ledger))
    last = max((info.end for info in chain if info.sealed and info.entries), default=record.last)
    return replace(
        record,
        ledgers=rows,
        trimmed_messages=chain.trimmed_messages,
        trimmed_to=chain.trimmed_to,
        last=max(record.last, last),
    )


def _row_json(row: LedgerRow) -> dict[str, int]:
    if row.entries is None:
        return {"id": row.id}
    return {
        "id": row.id,
        "entries": row.entries,
        "messages": row.messages,
        "bytes": row.bytes,
        "fileBytes": row.file_bytes,
        "sealedAtMs": row.sealed_at_ms,
        "lastPublishMs": row.last_publish_ms,
    }


def _row(value: Mapping[str, Any]) -> LedgerRow:
    entries = value.get("entries")
    if entries is None:
        return LedgerRow(int(value["id"]))
    return LedgerRow(
        int(value["id"]),
        int(entries),
        int(value["messages"]),
        int(value["bytes"]),
        int(value["fileBytes"]),
        int(value["sealedAtMs"]),
        int(value["lastPublishMs"]),
    )
