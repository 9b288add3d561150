"""What can go wrong between an administrator and a broker, each with a hint for people. Knows statuses, no sockets."""

from __future__ import annotations

from anabranch.model.errors import Error

HINTS = {
    401: "give a token with --token or ANABRANCH_TOKEN; does its role have the right?",
    403: "the role of this token lacks the right",
    404: "check the name; the verb `list` shows what there is",
    405: "this broker does not allow that here",
    429: "try again in a moment",
    503: "the broker is starting, stopping or busy; try again in a moment",
    507: "the broker's disk is full; free space, then try again",
}


class AdminError(Error):
    """Root of what `AdminClient` raises. `hint` says what to do about it; empty when there is nothing to say."""

    code = "admin"
    hint: str = ""


class BadUrl(AdminError):
    """Not like http://localhost:8080."""

    code = "bad-request"
    hint = "an admin URL is like http://localhost:8080"


class BadCall(AdminError):
    """Something that no broker could do."""

    code = "bad-request"


class CannotSignIn(AdminError):
    """The token could not be had just now."""

    code = "credentials"
    retryable = True


class StrangeAnswer(AdminError):
    """The broker answered with something else than this call is answered with."""

    code = "strange-answer"
    hint = "is it an admin URL of a broker?"


class Unreachable(AdminError):
    """Nobody answered, or the answer was cut off."""

    code = "unreachable"
    retryable = True
    hint = "is the broker running? Its address is given with --admin-url or ANABRANCH_ADMIN_URL"


class StrangePlace(AdminError):
    """A broker sends us to a place where our credentials should not go."""

    code = "redirect-refused"
    hint = "if that broker is yours, give its address with --admin-url"


class Refused(AdminError):
    """The broker answered, and the answer is no."""

    def __init__(self, status: int, reason: str, code: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.retryable = status in (429, 503, 504)
        self.hint = HINTS.get(status, "")
