"""Fencing epochs of one topic: of the producers that share a name, which attempt is the right one. Pure; who keeps the
bytes is `TopicProducers`.

Attempts of one Spark task share a name. An attempt that was given up may live on somewhere, and come back to a broker
that was restarted meanwhile or has taken the topic over: so what was told once is kept with the topic.
"""

from __future__ import annotations

import json

from anabranch.broker.errors import ProducerFenced

NAMES_MAX = 1_000  # the oldest go: their tasks are long over


class Fences:
    def __init__(self, blob: bytes | None = None) -> None:
        self._epochs: dict[str, int] = {} if not blob else {str(k): int(v) for k, v in json.loads(blob).items()}

    def raise_to(self, name: str, epoch: int) -> bool:
        """True: that is news, and must be durable before the producer is let in. ProducerFenced for an earlier one."""
        known = self._epochs.get(name)
        if known is not None and epoch < known:
            raise ProducerFenced(f"a later attempt of {name!r} has taken over")
        if epoch == known:
            return False
        self._epochs.pop(name, None)  # it is the last one used now
        self._epochs[name] = epoch
        while len(self._epochs) > NAMES_MAX:
            del self._epochs[next(iter(self._epochs))]
        return True

    def dump(self) -> bytes:
        return json.dumps(self._epochs, separators=(",", ":")).encode()
