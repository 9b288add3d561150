"""Signatures of calls between brokers: a keyed hash (HMAC-SHA-256) that only holders of the cluster's secret can make.

A signature names both brokers, the receiver with its incarnation. A recorded request is therefore refused by any other
broker, after a restart, after a minute, and the second time (`SeenOnce`). The secret is part of no text that is shown.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field

from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error

HEADER = "x-anabranch-broker"
ANSWER_HEADER = "x-anabranch-answer"
WINDOW_MS = 60_000  # clocks of brokers may differ by less than this
SEEN_MAX = 100_000
SECRET_BYTES = 32
_MAC_BYTES = 32


class NotABroker(Error):
    """A peer call without a valid signature of a broker of this cluster."""

    code = "forbidden"


@dataclass(frozen=True, slots=True)
class Secret:
    key: bytes = field(repr=False)  # also kept out of logs and tracebacks that show values

    def __post_init__(self) -> None:
        assert len(self.key) >= SECRET_BYTES

    def mac(self, *parts: bytes) -> str:
        """Hashes each part with its length, so that no two lists of parts are alike."""
        made = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.hexdigest()


@dataclass(frozen=True, slots=True)
class Signature:
    """Sender, receiver, time and nonce of a request, with the hash over all of it."""

    sender: str
    receiver: BrokerIncarnation
    sent_ms: int
    nonce: str
    mac: str

    def dump(self) -> str:
        return f"v1;{self.sender};{self.receiver};{self.sent_ms};{self.nonce};{self.mac}"

    @classmethod
    def load(cls, text: str) -> Signature:
        """Raises NotABroker."""
        parts = text.split(";")
        try:
            version, sender, receiver, sent, nonce, mac = parts
            broker, _, incarnation = receiver.rpartition("#")
            if version != "v1" or not text.isascii() or len(mac) != 2 * _MAC_BYTES or len(nonce) > 64:
                raise ValueError
            return cls(sender, BrokerIncarnation(broker, int(incarnation)), int(sent), nonce, mac)
        except ValueError:
            raise NotABroker("the signature is malformed") from None


def sign(
    secret: Secret,
    method: str,
    path: str,
    body: bytes,
    *,
    sender: str,
    receiver: BrokerIncarnation,
    sent_ms: int,
    nonce: str,
) -> Signature:
    return Signature(
        sender, receiver, sent_ms, nonce, _mac(secret, method, path, body, sender, receiver, sent_ms, nonce)
    )


def verify(
    secret: Secret, method: str, path: str, body: bytes, given: Signature, *, me: BrokerIncarnation, now_ms: int
) -> None:
    """Raises NotABroker. The hash is compared first, so that a caller without the secret learns nothing else."""
    wanted = _mac(secret, method, path, body, given.sender, given.receiver, given.sent_ms, given.nonce)
    if not hmac.compare_digest(wanted, given.mac):
        raise NotABroker("the signature is wrong")
    if given.receiver != me:
        raise NotABroker(f"the request is for {given.receiver}")
    if abs(now_ms - given.sent_ms) >= WINDOW_MS:
        raise NotABroker("the request is too old, or the clocks of the brokers differ")


def sign_answer(secret: Secret, asked: Signature, status: int, body: bytes) -> str:
    return secret.mac(b"answer", asked.mac.encode(), str(status).encode(), body)


def is_answer(secret: Secret, asked: Signature, status: int, body: bytes, given: str) -> bool:
    return hmac.compare_digest(sign_answer(secret, asked, status, body), given)


def _mac(
    secret: Secret,
    method: str,
    path: str,
    body: bytes,
    sender: str,
    receiver: BrokerIncarnation,
    sent_ms: int,
    nonce: str,
) -> str:
    texts = ("request", method, path, sender, str(receiver), str(sent_ms), nonce)
    return secret.mac(*(text.encode() for text in texts), hashlib.sha256(body).digest())


class SeenOnce:
    """Remembers requests for as long as their time is valid, so that none is accepted twice."""

    def __init__(self, count_max: int = SEEN_MAX) -> None:
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()  # to when they arrived
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._seen)

    def take(self, given: Signature, now_ms: int) -> None:
        """Raises NotABroker the second time. `given` is verified."""
        while self._seen and (self._first_ms() <= now_ms - 2 * WINDOW_MS):
            self._seen.popitem(last=False)
        key = (given.sender, given.nonce)
        if key in self._seen:
            raise NotABroker("the request came twice")
        if len(self._seen) >= self._count_max:  # refuse, because a forgotten request could be replayed
            raise NotABroker("too many peer calls at once")
        self._seen[key] = now_ms

    def _first_ms(self) -> int:
        return next(iter(self._seen.values()))
