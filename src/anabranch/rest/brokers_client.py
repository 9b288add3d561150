"""How a broker asks another one: a signed POST with a deadline, one connection each. Knows HTTP as h11 has it.

Errands are rare (an administrator's wish), so connections are not kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import h11

from anabranch.broker.fleet import ErrandRefused, NoAnswer, NotConnected
from anabranch.cluster.signature import ANSWER_HEADER, HEADER, Secret, is_answer, sign
from anabranch.cluster.table import Seat
from anabranch.rest.brokers_door import ERRANDS
from anabranch.runtime.clock import Clock

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 50.0  # less than a request of an administrator may take
ANSWER_BYTES_MAX = 64 << 20
_READ_BYTES = 64 * 1024


class BrokersClient:
    def __init__(self, secret: Secret, me: Seat, clock: Clock, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._secret = secret
        self._me = me
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._count = 0

    async def ask(self, url: str, receiver: Seat, errand: str, arguments: Mapping[str, Any]) -> Any:
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
            nonce=f"{self._me.incarnation:x}-{self._count:x}",
        )
        status, headers, answer = await self._exchange(url, path, body, signature.dump())
        if not is_answer(self._secret, signature, status, answer, headers.get(ANSWER_HEADER, "")):
            raise NoAnswer(f"{url} did not answer as {receiver}: HTTP {status} without its signature")
        value = json.loads(answer) if answer else None
        if status >= 300:
            said = value if isinstance(value, dict) else {}
            raise ErrandRefused(str(said.get("code", "error")), str(said.get("reason", f"HTTP {status}")), status)
        return value

    async def _exchange(self, url: str, path: str, body: bytes, signature: str) -> tuple[int, dict[str, str], bytes]:
        where = urlsplit(url)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(where.hostname or "", where.port or 80)
        except (OSError, TimeoutError) as error:
            raise NotConnected(f"broker at {url} cannot be reached: {error or 'timed out'}") from error
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await self._talk(reader, writer, where.netloc, path, body, signature)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            raise NoAnswer(f"broker at {url} did not answer: {error or 'timed out'}") from error
        finally:
            with suppress(OSError):
                writer.transport.abort()

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        path: str,
        body: bytes,
        signature: str,
    ) -> tuple[int, dict[str, str], bytes]:
        http = h11.Connection(h11.CLIENT)
        headers = [
            ("Host", host),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            (HEADER, signature),
        ]
        for piece in (h11.Request(method="POST", target=path, headers=headers), h11.Data(body), h11.EndOfMessage()):
            writer.write(http.send(piece) or b"")
        await writer.drain()
        status, found, answer = 0, dict[str, str](), bytearray()
        while True:
            event: Any = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                answer += event.data
                if len(answer) > ANSWER_BYTES_MAX:
                    raise NoAnswer(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, found, bytes(answer)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("closed before the answer was complete")
