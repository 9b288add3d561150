"""Errors of the admin client. Each has a hint for the user."""

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
    """Root of what `AdminClient` raises. `hint` says what to do, or is empty."""

    code = "admin"
    hint: str = ""


class BadUrl(AdminError):
    """Not an URL like http://localhost:8080."""

    code = "bad-request"
    hint = "an admin URL is like http://localhost:8080"


class BadCall(AdminError):
    """The arguments cannot be sent."""

    code = "bad-request"


class BadTls(AdminError):
    """The files for TLS are missing or not usable."""

    code = "bad-tls-files"


class CannotSignIn(AdminError):
    """The function that returns the token failed."""

    code = "credentials"
    retryable = True


class TokenUnreadable(AdminError):
    """The token file is missing, empty or cannot be read."""

    code = "token-unreadable"


class TlsFailed(AdminError):
    """The TLS handshake failed: a certificate is not accepted, or the port does not use TLS."""

    code = "tls"
    hint = "does the URL begin with https:// for a TLS port only, and does --trust-file name its authority?"


class WrongPort(AdminError):
    """The port has another protocol than the URL."""

    code = "wrong-port"
    hint = "an admin URL is like http://localhost:8080, or https:// for a TLS port"


class StrangeAnswer(AdminError):
    """The answer has another type than the call expects."""

    code = "strange-answer"
    hint = "is it an admin URL of a broker?"


class Unreachable(AdminError):
    """No answer, or an incomplete one."""

    code = "unreachable"
    retryable = True
    hint = "is the broker running? Its address is given with --admin-url or ANABRANCH_ADMIN_URL"


class StrangePlace(AdminError):
    """The redirect leads to a host that must not get the credentials."""

    code = "redirect-refused"
    hint = "if that broker is yours, give its address with --admin-url"


class Refused(AdminError):
    """The broker answered with an error."""

    def __init__(self, status: int, reason: str, code: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.retryable = status in (429, 503, 504)
        self.hint = HINTS.get(status, "")
