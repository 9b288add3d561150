"""One run of a broker process, named by the broker's id and the generation of its commit log."""

from __future__ import annotations

from typing import NamedTuple


class BrokerIncarnation(NamedTuple):
    """The number grows with every start of the broker, so a later incarnation replaces an earlier one."""

    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.broker}#{self.number}"
