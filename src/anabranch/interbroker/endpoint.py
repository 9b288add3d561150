"""Serves the calls of other brokers: signed requests under `/internal/v1/errands/`.

A request without a valid signature is answered 403 and reaches nothing, whatever other authentication is configured.
Answers to signed requests are signed too, so that the calling broker knows which broker answered. HTTP is the
caller's: this module takes the parts of a request and returns plain values.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from anabranch.interbroker.signature import (
    ANSWER_HEADER,
    HEADER,
    NotABroker,
    Secret,
    SeenOnce,
    Signature,
    sign_answer,
    verify,
)
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import BadRequest, Error
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger

log = get_logger(__name__)

PREFIX = "/internal/"
CALLS = f"{PREFIX}v1/errands/"

Serve = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Carries out a call: its name, and its arguments as plain values."""


class UnknownCall(Error):
    code = "unknown-path"


class PeerEndpoint:
    def __init__(self, secret: Secret, me: BrokerIncarnation, clock: Clock, serve: Serve) -> None:
        self._secret = secret
        self._me = me
        self._clock = clock
        self._serve = serve
        self._seen = SeenOnce()
        self.refused = 0

    def admit(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Signature:
        """Raises NotABroker; the reason is logged and not sent."""
        try:
            if query:
                raise NotABroker("a peer call has no query")
            signature, now_ms = Signature.load(headers.get(HEADER, "")), self._clock.now_ms()
            verify(self._secret, method, path, body, signature, me=self._me, now_ms=now_ms)
            self._seen.take(signature, now_ms)
        except NotABroker as error:
            self.refused += 1
            log.warning("peer call refused: not signed by a broker", extra={"path": path, "reason": error.reason})
            raise NotABroker("only brokers of this cluster may call this") from error
        return signature

    async def call(self, method: str, path: str, body: bytes) -> Any:
        """Carries out an admitted call."""
        if method != "POST" or not path.startswith(CALLS):
            raise UnknownCall(f"nothing is served under {path}")
        try:
            arguments = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise BadRequest("the arguments of a peer call are an object")
        return await self._serve(path.removeprefix(CALLS), arguments)

    def signed(self, request: Signature, status: int, body: bytes) -> tuple[str, str]:
        """The header that an answer to the request carries."""
        return ANSWER_HEADER, sign_answer(self._secret, request, status, body)
