"""How one broker knows another: requests and answers carry a keyed hash that only holders of the cluster's secret can
make. Pure values; the secret is never part of a text that is shown.

What is signed names both sides, the receiver with its incarnation: a request that was overheard is good for no other
broker, not after a restart, not a minute later, and not twice (`SeenOnce`).
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
    """A request to the brokers' own door that no broker of this cluster has signed."""

    code = "forbidden"


@dataclass(frozen=True, slots=True)
class Secret:
    key: bytes = field(repr=False)  # also kept out of logs and tracebacks that show values

    def __post_init__(self) -> None:
        assert len(self.key) >= SECRET_BYTES

    def mac(self, *parts: bytes) -> str:
        """Each part counts with its length: no two lists of parts look alike."""
        made = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.hexdigest()


@dataclass(frozen=True, slots=True)
class Signature:
    """Who asked whom, when, under which number of its own."""

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
            raise NotABroker("the signature is not one of a broker") from None


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
    """Raises NotABroker. The hash is compared first: who does not know the secret learns nothing else."""
    wanted = _mac(secret, method, path, body, given.sender, given.receiver, given.sent_ms, given.nonce)
    if not hmac.compare_digest(wanted, given.mac):
        raise NotABroker("the signature is wrong")
    if given.receiver != me:
        raise NotABroker(f"the request was meant for {given.receiver}")
    if abs(now_ms - given.sent_ms) >= WINDOW_MS:
        raise NotABroker("the request is too old, or a clock is wrong")


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
    """Remembers requests for as long as they would be accepted, so that none is accepted twice."""

    def __init__(self, count_max: int = SEEN_MAX) -> None:
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()  # to when they were sent
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
        if len(self._seen) >= self._count_max:  # refuse rather than forget what could come again
            raise NotABroker("too many requests of brokers at once")
        self._seen[key] = now_ms

    def _first_ms(self) -> int:
        return next(iter(self._seen.values()))
