"""A registered consumer's place in its group: what it says goes through here, under the number of its link."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.controller.group.checkpoint_progress import Report
from anabranch.controller.group.group_coordinator import GroupCoordinator


class Sitting:
    """Implements `face.Seat`."""

    def __init__(self, members: GroupCoordinator, consumer: str, number: int) -> None:
        self._members, self._consumer, self._number = members, consumer, number

    def released(self, segment_ids: Iterable[int], generation: int) -> None:
        self._members.released(self._number, segment_ids, generation)

    async def progressed(self, reports: Iterable[Report]) -> None:
        await self._members.progressed(self._number, reports)

    async def leave(self) -> None:
        await self._members.leave(self._consumer, self._number)

    def disconnected(self) -> None:
        self._members.disconnected(self._number)
