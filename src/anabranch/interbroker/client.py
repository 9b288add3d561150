"""Calls other brokers: a signed POST with a deadline, on a kept connection; with TLS where there is no plain port."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from anabranch.interbroker.connections import PeerConnections
from anabranch.interbroker.endpoint import CALLS
from anabranch.interbroker.errors import PeerCallRefused, PeerCallUnanswered, PeerNotConnected
from anabranch.interbroker.signature import ANSWER_HEADER, HEADER, Secret, is_answer, sign
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.http_client import ClosedBeforeAnswer, HttpAnswer, HttpConnection

ANSWER_SECONDS = 50.0  # shorter than the deadline of an administrator's request


class PeerClient:
    def __init__(
        self,
        secret: Secret,
        me: BrokerIncarnation,
        clock: Clock,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` gives the context of a new connection to an `https://` address."""
        self._tls = tls
        self._secret = secret
        self._me = me
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._count = 0
        self._connections = PeerConnections(clock)

    def close(self) -> None:
        self._connections.close()

    async def call(self, url: str, receiver: BrokerIncarnation, name: str, arguments: Mapping[str, Any]) -> Any:
        """Raises PeerCallRefused, PeerNotConnected or PeerCallUnanswered."""
        self._count += 1
        path, body = f"{CALLS}{name}", json.dumps(dict(arguments)).encode()
        signature = sign(
            self._secret,
            "POST",
            path,
            body,
            sender=self._me.broker,
            receiver=receiver,
            sent_ms=self._clock.now_ms(),
            nonce=f"{self._me.number:x}-{self._count:x}",
        )
        answer = await self._exchange(url, path, body, signature.dump())
        signed = answer.headers.get(ANSWER_HEADER, "")
        if not is_answer(self._secret, signature, answer.status, answer.body, signed):
            raise PeerCallUnanswered(f"{url} did not answer as {receiver}: HTTP {answer.status} without its signature")
        value = json.loads(answer.body) if answer.body else None
        if answer.status >= 300:
            refusal = value if isinstance(value, dict) else {}
            reason = str(refusal.get("reason", f"HTTP {answer.status}"))
            code = refusal.get("error") or refusal.get("code")  # brokers of an earlier version say `code`
            raise PeerCallRefused(str(code or "error"), reason, answer.status)
        return value

    async def _exchange(self, url: str, path: str, body: bytes, signature: str) -> HttpAnswer:
        where = urlsplit(url)
        host, port = where.hostname or "", where.port or (443 if where.scheme == "https" else 80)
        headers = [("Host", where.netloc), ("Content-Type", "application/json"), (HEADER, signature)]
        connection = self._connections.idle(host, port)
        if connection is not None:
            try:
                return await self._use(connection, host, port, path, headers, body)
            except ClosedBeforeAnswer:
                pass  # closed while idle; repeated with the same nonce, which the receiver accepts once
        connection = await self._connections.fresh(host, port, self._context(url) if where.scheme == "https" else None)
        try:
            return await self._use(connection, host, port, path, headers, body)
        except ClosedBeforeAnswer as error:
            raise PeerCallUnanswered(f"broker at {url} did not answer: {error}") from error

    def _context(self, url: str) -> ssl.SSLContext:
        if self._tls is None:
            raise PeerNotConnected(f"broker at {url} has only TLS ports, and this broker has no TLS")
        try:
            return self._tls()
        except Error as error:
            raise PeerNotConnected(f"broker at {url} cannot be called: {error.reason}") from error

    async def _use(
        self, connection: HttpConnection, host: str, port: int, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> HttpAnswer:
        """Raises ClosedBeforeAnswer or PeerCallUnanswered."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                answer = await connection.exchange("POST", path, headers, body)
        except ClosedBeforeAnswer:
            connection.abort()
            raise
        except (OSError, TimeoutError) as error:
            connection.abort()
            raise PeerCallUnanswered(f"broker at {host}:{port} did not answer: {error or 'timed out'}") from error
        except BaseException:
            connection.abort()
            raise
        self._connections.release(host, port, connection)
        return answer
