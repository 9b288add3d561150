"""The door that only brokers of the cluster come through: signed errands under `/internal/v1/errands/`.

Whatever other sign-in is on or off, a request without a valid signature is answered 403 and reaches nothing. Answers to
signed requests are signed as well, so that the asking broker knows who has spoken.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from anabranch.broker.placement import ServedElsewhere
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
from anabranch.model.errors import BadRequest
from anabranch.rest.errors import error_response
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.router import UnknownPath
from anabranch.runtime.clock import Clock

log = logging.getLogger(__name__)

PREFIX = "/internal/"
ERRANDS = f"{PREFIX}v1/errands/"

Work = Callable[[], Awaitable[Response]]
Errand = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class PeerEndpoint:
    def __init__(self, secret: Secret, me: BrokerIncarnation, clock: Clock, errand: Errand) -> None:
        """`errand` does what a broker asks for: a name, and arguments as plain values."""
        self._secret = secret
        self._me = me
        self._clock = clock
        self._errand = errand
        self._seen = SeenOnce()
        self.refused = 0

    async def answer(self, request: Request, translated: Callable[[Work], Awaitable[Response]]) -> Response:
        """`translated` turns whatever the work raises into an answer."""
        try:
            signature = self._admit(request)
        except NotABroker as error:
            self.refused += 1
            log.warning("refused at the brokers' door", extra={"path": request.path, "reason": error.reason})
            return error_response(NotABroker("only brokers of this cluster may"))
        response = await translated(lambda: self._do(request))
        signed = sign_answer(self._secret, signature, response.status, response.body)
        return replace(response, headers=(*response.headers, (ANSWER_HEADER, signed)))

    def _admit(self, request: Request) -> Signature:
        if request.query:
            raise NotABroker("brokers ask without a query")
        signature, now_ms = Signature.load(request.headers.get(HEADER, "")), self._clock.now_ms()
        verify(self._secret, request.method, request.path, request.body, signature, me=self._me, now_ms=now_ms)
        self._seen.take(signature, now_ms)
        return signature

    async def _do(self, request: Request) -> Response:
        if request.method != "POST" or not request.path.startswith(ERRANDS):
            raise UnknownPath(request.path)
        arguments = request.json()
        if not isinstance(arguments, dict):
            raise BadRequest("the arguments of an errand are an object")
        try:
            return json_response(await self._errand(request.path.removeprefix(ERRANDS), arguments))
        except ServedElsewhere as error:  # who asks looks for itself
            return error_response(error)
