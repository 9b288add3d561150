"""Authentication of one connection: at CONNECT, and again whenever its credentials expire.

    CONNECT --> checked --> CONNECTED --> (credentials expire) AUTH_CHALLENGE --> AUTH_RESPONSE --> checked --> …

A refusal is an ERROR without request id, then the connection is closed. The C++ client cannot see that: it connects
again until its operation timeout. It gets CONNECTED instead, and the refusal as the answer to its first request. The
connection is also closed if the client cannot refresh its credentials, does not answer in time, or answers with another
role.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch.model.errors import Error
from anabranch.protocol import replies
from anabranch.protocol.commands import NO_REQUEST
from anabranch.protocol.errors import BadCommand
from anabranch.protocol.handshake import Peer
from anabranch.protocol.server_errors import ServerError, is_cpp
from anabranch.runtime.clock import Clock, Timer
from anabranch.runtime.logs import get_logger
from anabranch.security.access_control import AccessControl
from anabranch.security.authentication import Credentials, Identity, Unauthenticated

if TYPE_CHECKING:
    from anabranch.broker.wire.connection import Connection

log = get_logger(__name__)


class AuthenticationFlow:
    def __init__(
        self,
        connection: Connection,
        guard: AccessControl,
        clock: Clock,
        certificate_name: str | None,
        on_identified: Callable[[Identity], None],
        on_refused: Callable[[Error], None],
    ) -> None:
        """`on_identified` is called once, after the first success, and opens the connection. `on_refused` answers the
        client's requests with the refusal."""
        self.identity: Identity | None = None
        self._connection = connection
        self._guard = guard
        self._clock = clock
        self._certificate_name = certificate_name
        self._on_identified = on_identified
        self._on_refused = on_refused
        self._server_version = ""
        self._peer: Peer | None = None
        self._challenged = False
        self._timer: Timer | None = None

    def begin(self, peer: Peer, server_version: str) -> None:
        """CONNECT was received."""
        self._peer, self._server_version = peer, server_version
        if peer.is_proxied:
            self._refuse(Unauthenticated("proxied connections (original principal) are not supported"))
            return
        self._start(Credentials(peer.auth_method, peer.auth_data, self._certificate_name))

    def answered(self, response: Any) -> None:
        """AUTH_RESPONSE was received."""
        if not self._challenged:
            raise BadCommand("AUTH_RESPONSE without a challenge")
        self._challenged = False
        auth = response.response
        self._start(Credentials(auth.auth_method_name, auth.auth_data, self._certificate_name))

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, credentials: Credentials) -> None:
        self._connection.tasks.spawn(self._check(credentials), "authenticate")

    async def _check(self, credentials: Credentials) -> None:
        try:
            found = await self._guard.sign_in(credentials, self._clock.now_ms())
        except Error as error:
            self._refuse(error)
            return
        except Exception:  # an internal error must not leave the connection half open
            log.exception("authentication failed with an internal error", extra={"peer": self._connection.address})
            self._refuse(Unauthenticated("internal error"))
            return
        before = self.identity
        if before is not None and before.role != found.role:
            self._refuse(Unauthenticated("new credentials have another role than the connection"))
            return
        self.identity = found
        self._watch_expiry(found)
        if before is None:
            self._on_identified(found)

    def _watch_expiry(self, identity: Identity) -> None:
        self.closed()
        if identity.expires_ms is not None:
            seconds = max(0.0, (identity.expires_ms - self._clock.now_ms()) / 1000)
            self._timer = self._clock.call_later(seconds, self._expired)

    def _expired(self) -> None:
        assert self._peer is not None
        if not self._peer.auth_refresh:
            self._refuse(Unauthenticated("the credentials have expired and this client cannot refresh them"))
            return
        method = self.identity.method if self.identity is not None else ""
        self._challenged = True
        self._connection.send(replies.auth_refresh(self._server_version, self._peer.protocol_version, method))
        self._timer = self._clock.call_later(self._guard.refresh_seconds, self._not_refreshed)

    def _not_refreshed(self) -> None:
        self._refuse(Unauthenticated("the credentials have expired and were not refreshed in time"))

    def _refuse(self, error: Error) -> None:
        log.warning(
            "authentication refused",
            extra={
                "peer": self._connection.address,
                "reason": error.reason,
                "method": self._peer.auth_method[:32] if self._peer is not None else "",
            },
        )
        self.closed()
        if self.identity is None and self._peer is not None and is_cpp(self._peer.client_version):
            self._on_refused(error)
            return
        self._connection.send(replies.error(NO_REQUEST, ServerError.AuthenticationError, error.reason))
        self._connection.close()
