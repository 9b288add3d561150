"""What each broker's machine has left: disk, file descriptors; its clock; how fast its metadata store answers."""

from __future__ import annotations

import os
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.broker.admin.owner_routing import OwnerRouting
from anabranch.broker.services import Services
from anabranch.interbroker.peer_calls import peer_call


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process runs on."""

    directory: Path | None = None  # of the messages; None: they are not on this machine
    sync: str = ""  # when writes reach the disk: `storage.sync`
    ask_store: Callable[[], Awaitable[object]] | None = None  # one read of the metadata store


class Machines:
    def __init__(self, services: Callable[[], Services], machine: Machine) -> None:
        self._services = services
        self._machine = machine
        self._routing = OwnerRouting(services)

    async def facts(self) -> list[dict[str, Any]]:
        """Of all brokers, by their ids. `clockSkewMs`: how far a clock is from this broker's, at least."""
        clock = self._services().clock
        before = clock.now_ms()
        found = await self._routing.call_all(self.facts_here, absent_ok=True)
        after = clock.now_ms()
        return sorted(
            ({**one, "clockSkewMs": max(before - one["nowMs"], one["nowMs"] - after, 0)} for one in found),
            key=lambda one: str(one["broker"]),
        )

    @peer_call("machines.facts_here")
    async def facts_here(self) -> dict[str, Any]:
        services, machine = self._services(), self._machine
        began = services.clock.monotonic()
        if machine.ask_store is not None:
            await machine.ask_store()
        return {
            "broker": services.address.broker_id,
            "metadataMs": round(1000 * (services.clock.monotonic() - began), 3),
            "nowMs": services.clock.now_ms(),
            "sync": machine.sync,
            "disk": None if machine.directory is None else disk_of(machine.directory),
            "files": {"open": len(os.listdir("/proc/self/fd")), "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]},
        }


def disk_of(directory: Path) -> dict[str, int]:
    """Bytes that this process may still use, and all."""
    found = os.statvfs(directory)
    return {"free": found.f_bavail * found.f_frsize, "total": found.f_blocks * found.f_frsize}
