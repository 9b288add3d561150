"""Errors of the ZooKeeper client to errors of the metadata port. `store.py` translates, at the port's methods."""

from __future__ import annotations

from types import TracebackType

from anabranch.metadata.interface import OutcomeUnknown, RequestTooLarge, SessionLost, StoreUnavailable
from anabranch.metadata.store_security import TlsFailed
from anabranch.model.errors import Error, NotAllowed
from anabranch.zookeeper import errors as zookeeper


class RequestRefused(StoreUnavailable):
    """The server answered with an error that the store has no rule for."""

    code = "metadata-refused"


class MalformedAnswer(StoreUnavailable):
    """Bytes from the server that are not a ZooKeeper answer."""

    code = "metadata-malformed-answer"


def store_error(error: zookeeper.ZooKeeperError) -> Error:
    match error:
        case zookeeper.OutcomeUncertain():
            return OutcomeUnknown(str(error))
        case zookeeper.SessionExpired():
            return SessionLost(str(error))
        case zookeeper.RequestTooLarge():
            return RequestTooLarge(str(error))
        case zookeeper.AccessRefused():
            return TlsFailed(str(error))
        case zookeeper.ServerError(number=zookeeper.Code.NO_AUTH):
            return NotAllowed("ZooKeeper refuses this user: the access list of a node does not name it")
        case zookeeper.ServerError():
            return RequestRefused(str(error))
        case zookeeper.MalformedAnswer():
            return MalformedAnswer(str(error))
        case _:
            return StoreUnavailable(str(error))


class _Translated:
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, zookeeper.ZooKeeperError):
            raise store_error(error) from error


translated = _Translated()
"""`with translated:` raises errors of the port instead of errors of the client."""
