"""Journal of changes: what was done over HTTP, by whom, when, and with which outcome.

Each broker keeps the newest `KEPT_MAX` changes that it made, in memory; the answer has those of all brokers. What must
outlive a broker is in its log, which has a line for every change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.services import Services
from anabranch.interbroker.peer_calls import peer_call
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

KEPT_MAX = 500
TEXT_MAX = 500


@dataclass(frozen=True, slots=True)
class Change:
    at_ms: int
    role: str | None  # None: the broker does not authenticate
    what: str  # the summary of the call
    method: str
    path: str
    status: int
    error: str = ""  # code and reason of a refusal
    reason: str = ""
    operation_id: str = ""


class Journal:
    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._routing = OwnerRouting(services)
        self._changes: deque[Change] = deque(maxlen=KEPT_MAX)

    def note(
        self,
        *,
        role: str | None,
        what: str,
        method: str,
        path: str,
        status: int,
        error: str = "",
        reason: str = "",
        operation_id: str = "",
    ) -> None:
        now_ms, texts = self._services().clock.now_ms(), (path, error, reason, operation_id)
        path, error, reason, operation_id = (text[:TEXT_MAX] for text in texts)
        self._changes.append(Change(now_ms, role, what, method, path, status, error, reason, operation_id))
        extra = {"role": role, "method": method, "path": path, "status": status}
        log.info("change over HTTP", extra=extra if not error else {**extra, "error": error, "reason": reason})

    async def newest(self, count: int) -> list[dict[str, Any]]:
        """Of all brokers, the newest first."""
        found = await self._routing.call_all(self.newest_here, absent_ok=True, count=count)
        changes = [one for some in found if some is not None for one in some]
        changes.sort(key=lambda one: one["atMs"], reverse=True)
        return changes[:count]

    @peer_call("journal.newest_here")
    async def newest_here(self, count: int) -> list[dict[str, Any]]:
        """Of this broker, the newest first."""
        broker = self._services().address.broker_id
        newest = list(self._changes)[-count:] if count else []
        return [{**_shown(one), "broker": broker} for one in reversed(newest)]


def _shown(change: Change) -> dict[str, Any]:
    found = asdict(change)
    return {"atMs": found.pop("at_ms"), "operationId": found.pop("operation_id"), **found}
