"""The endpoint for peer calls as a handler of the HTTP server."""

from __future__ import annotations

from dataclasses import replace

from anabranch.broker.placement import ServedElsewhere
from anabranch.interbroker.endpoint import PREFIX, PeerEndpoint
from anabranch.interbroker.signature import NotABroker
from anabranch.rest.errors import error_response
from anabranch.rest.http_message import Request, Response, json_response
from anabranch.rest.server import Answered, InternalHandler


def internal_handler(endpoint: PeerEndpoint) -> InternalHandler:
    """Serves every path under `/internal/`."""

    async def serve(request: Request, answered: Answered) -> Response:
        try:
            signature = endpoint.admit(request.method, request.path, request.query, request.headers, request.body)
        except NotABroker as error:
            return error_response(error)

        async def call() -> Response:
            try:
                return json_response(await endpoint.call(request.method, request.path, request.body))
            except ServedElsewhere as error:  # never a redirect: the calling broker looks the topic up again
                return error_response(error)

        response = await answered(call)
        return replace(
            response, headers=(*response.headers, endpoint.signed(signature, response.status, response.body))
        )

    return InternalHandler(PREFIX, serve)
