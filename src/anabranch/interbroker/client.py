"""How a broker asks another one: a signed POST with a deadline, on a connection that is kept for the next one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import h11

from anabranch.broker.peers import PeerCallRefused, PeerCallUnanswered
from anabranch.interbroker.connections import Answer, Lines, PeerConnection, WasClosed
from anabranch.interbroker.endpoint import ERRANDS
from anabranch.interbroker.signature import ANSWER_HEADER, HEADER, Secret, is_answer, sign
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.runtime.clock import Clock

ANSWER_SECONDS = 50.0  # less than a request of an administrator may take


class PeerClient:
    def __init__(
        self, secret: Secret, me: BrokerIncarnation, clock: Clock, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._secret = secret
        self._me = me
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._count = 0
        self._lines = Lines(clock)

    def close(self) -> None:
        self._lines.close()

    async def ask(self, url: str, receiver: BrokerIncarnation, errand: str, arguments: Mapping[str, Any]) -> Any:
        """Raises ErrandRefused, NotConnected or NoAnswer."""
        self._count += 1
        path, body = f"{ERRANDS}{errand}", json.dumps(dict(arguments)).encode()
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
        status, headers, answer = await self._exchange(url, path, body, signature.dump())
        if not is_answer(self._secret, signature, status, answer, headers.get(ANSWER_HEADER, "")):
            raise PeerCallUnanswered(f"{url} did not answer as {receiver}: HTTP {status} without its signature")
        value = json.loads(answer) if answer else None
        if status >= 300:
            said = value if isinstance(value, dict) else {}
            raise PeerCallRefused(str(said.get("code", "error")), str(said.get("reason", f"HTTP {status}")), status)
        return value

    async def _exchange(self, url: str, path: str, body: bytes, signature: str) -> Answer:
        where = urlsplit(url)
        host, port = where.hostname or "", where.port or 80
        headers = [("Host", where.netloc), ("Content-Type", "application/json"), (HEADER, signature)]
        line = self._lines.kept(host, port)
        if line is not None:
            try:
                return await self._talk(line, host, port, path, headers, body)
            except WasClosed:
                pass  # while it was idle; it is asked again under the same number, which is accepted once
        line = await self._lines.fresh(host, port)
        try:
            return await self._talk(line, host, port, path, headers, body)
        except WasClosed as error:
            raise PeerCallUnanswered(f"broker at {url} did not answer: {error}") from error

    async def _talk(
        self, line: PeerConnection, host: str, port: int, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> Answer:
        """The line is kept when it is sound afterwards. Raises WasClosed or NoAnswer."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                answer = await line.exchange(path, headers, body)
        except WasClosed:
            line.drop()
            raise
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            line.drop()
            raise PeerCallUnanswered(f"broker at {host}:{port} did not answer: {error or 'timed out'}") from error
        except BaseException:
            line.drop()
            raise
        self._lines.keep(host, port, line)
        return answer
