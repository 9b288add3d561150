"""HTTP clients on the binary port: recognised by their first bytes, and answered in their protocol.

The first four bytes are the length of a frame here. The method of an HTTP request is a length beyond every limit.
"""

from __future__ import annotations

import json

from anabranch.protocol.errors import FrameTooLarge, ProtocolError

_METHODS = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"PATC", b"OPTI"))
_REASON = "this is the binary port for clients; HTTP is on another port, usually 8080"
_BODY = json.dumps({"reason": _REASON, "error": "wrong-port"}).encode()

HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


def is_http(error: ProtocolError) -> bool:
    """Whether the frame that caused the error is the start of an HTTP request."""
    return isinstance(error, FrameTooLarge) and (error.frame_bytes - 4).to_bytes(4, "big") in _METHODS
