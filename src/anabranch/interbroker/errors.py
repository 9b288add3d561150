"""Why a peer call failed. Codes are also on the wire, so they stay as they are."""

from __future__ import annotations

from anabranch.model.errors import Error, NotReady


class PeerCallRefused(Error):
    """The other broker answered with an error; code, reason and HTTP status are its own."""

    def __init__(self, code: str, reason: str, status: int) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status
        self.retryable = code in ("not-ready", "served-elsewhere", "metadata-unavailable", "metadata-read-only")


class PeerCallUnanswered(NotReady):
    """The other broker did not answer. The call may or may not have been carried out."""

    code = "broker-unreachable"


class PeerNotConnected(PeerCallUnanswered):
    """The other broker could not be reached. The call was not carried out."""
