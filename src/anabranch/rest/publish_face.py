"""What HTTP may ask of publishing. See `face`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anabranch.broker.admin.publish import Outgoing, Published
from anabranch.model.schema import Schema


class PublishFace(Protocol):
    async def publish(
        self, topic: str, messages: Sequence[Outgoing], schema: Schema | None, producer_name: str
    ) -> Published: ...
