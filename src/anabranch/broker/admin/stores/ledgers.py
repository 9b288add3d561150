"""Ledgers on Apache BookKeeper, for administrators: where their copies are, what is wrong with them, orphans."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from anabranch.model.errors import NotAllowed
from anabranch.runtime.logs import get_logger
from anabranch.storage.interface import StorageError
from anabranch.storage.topic.topic_record import BadTopicRecord, LedgerUse, decode_record, ledgers_of

if TYPE_CHECKING:  # a broker on files does not load them
    from anabranch.storage.bookkeeper.ledger_check import LedgerFacts, Listing
    from anabranch.storage.bookkeeper.ledger_inspection import LedgerInspection

log = get_logger(__name__)

ORPHAN_AGE_S = 3600
"""A ledger is created before the topic record names it, so a young one without a name is no orphan."""

ReadRecords = Callable[[], AsyncIterator[tuple[str, bytes]]]


class LedgersAdmin:
    def __init__(self, inspection: LedgerInspection | None = None, records: ReadRecords | None = None) -> None:
        """None: this broker keeps its ledgers in files. `records`: keys and values of all topic records."""
        self._inspection, self._records = inspection, records

    @property
    def _here(self) -> LedgerInspection:
        if self._inspection is None:
            raise NotAllowed("this broker keeps its ledgers in files; `ledgers` is for clusters on Apache BookKeeper")
        return self._inspection

    async def list(self, *, after: int, limit: int) -> dict[str, Any]:
        """`next` continues the list; None at its end."""
        found = await self._here.page(after, limit)
        rows = [self._row(facts) for facts in found]
        return {"ledgers": rows, "next": found[-1].ledger if len(found) == limit else None}

    async def show(self, ledger: int) -> dict[str, Any]:
        here = self._here
        facts = await here.find(ledger)
        return {
            **self._row(facts),
            **_use((await self._uses()).get(ledger)),
            "replicas": [
                {
                    "bookie": one.bookie,
                    "state": one.state.value,
                    "firstEntry": one.first_entry,
                    "entry": one.entry,
                    "answer": one.answer,
                }
                for one in await here.replicas(facts)
            ],
        }

    async def check(self, *, orphan_age_s: int = ORPHAN_AGE_S) -> dict[str, Any]:
        uses: dict[int, LedgerUse] = {}

        async def read() -> dict[int, LedgerUse]:
            nonlocal uses
            uses = await self._uses()
            return uses

        report = await self._here.check(read, age_min_ms=orphan_age_s * 1000)

        def listed(listing: Listing) -> dict[str, Any]:
            rows = [{"ledger": ledger, **_use(uses.get(ledger))} for ledger in listing.first]
            return {"count": listing.count, "ledgers": rows}

        return {
            "bookies": {one: self._here.state_of(one).value for one in sorted(self._here.registered)},
            "ledgers": report.own,
            "foreign": report.foreign,
            "open": report.open,
            "entries": report.entries,
            "bytes": report.bytes,
            "unannounced": report.young,
            "underReplicated": listed(report.under_replicated),
            "orphans": listed(report.orphans),
            "missing": listed(report.missing),
        }

    async def recover(self, ledger: int) -> dict[str, Any]:
        """Closes the ledger; the topic that writes to it continues in a new one."""
        return self._row(await self._here.recover(ledger))

    async def delete_orphans(self, *, dry_run: bool, orphan_age_s: int = ORPHAN_AGE_S) -> dict[str, Any]:
        """A bounded number in one call; `left` says how many more there are."""
        here = self._here
        report = await here.check(self._uses, age_min_ms=orphan_age_s * 1000)
        deleted, failed = [], {}
        for ledger in [] if dry_run else report.orphans.first:
            try:
                await here.delete_orphan(ledger)
            except StorageError as error:
                failed[str(ledger)] = error.reason
            else:
                deleted.append(ledger)
        if deleted:
            log.info("deleted ledgers that no topic record names", extra={"ledgers": deleted})
        return {
            "dryRun": dry_run,
            "orphans": report.orphans.first,
            "deleted": deleted,
            "failed": failed,
            "left": report.orphans.count - len(deleted),
        }

    # inside

    def _row(self, facts: LedgerFacts) -> dict[str, Any]:
        here, metadata = self._here, facts.metadata
        return {
            "ledger": facts.ledger,
            "state": metadata.state.name,
            "entries": metadata.last_entry + 1 if metadata.is_closed else None,
            "bytes": metadata.length if metadata.is_closed else None,
            "createdMs": facts.created_ms,
            "isOwn": here.is_own(facts),
            "ensemble": metadata.quorums.ensemble,
            "writeQuorum": metadata.quorums.write,
            "ackQuorum": metadata.quorums.ack,
            "segments": [{"firstEntry": one.first_entry, "bookies": list(one.ensemble)} for one in metadata.segments],
            "copies": facts.copies(here.registered),
            "away": list(facts.away(here.registered)),
        }

    async def _uses(self) -> dict[int, LedgerUse]:
        """Raises BadTopicRecord: with an unreadable record no ledger may be called an orphan."""
        assert self._records is not None
        uses: dict[int, LedgerUse] = {}
        async for key, value in self._records():
            try:
                named = ledgers_of(decode_record(value))
            except BadTopicRecord as error:
                raise BadTopicRecord(f"{key}: {error.reason}") from error
            topic = _topic_of(key)
            uses.update((ledger, LedgerUse(topic, kind)) for ledger, kind in named.items())
        return uses


def _use(use: LedgerUse | None) -> dict[str, Any]:
    return {"topic": None, "use": None} if use is None else {"topic": use.topic, "use": use.kind}


def _topic_of(key: str) -> str:
    """The name of the topic whose record has this key: `/managed/TENANT/NAMESPACE/DOMAIN/LOCAL`."""
    parts = key.split("/", 5)
    if len(parts) < 6:
        return key
    _, _, tenant, namespace, domain, local = parts
    return f"{domain}://{tenant}/{namespace}/{unquote_plus(local)}"
