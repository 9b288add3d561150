"""Errors of bytes received from a peer. The connection of that peer is closed."""

from __future__ import annotations

from anabranch.model.errors import Error


class ProtocolError(Error):
    """The peer violated the protocol; the connection cannot continue."""

    code = "protocol"


class BadFrame(ProtocolError):
    """Sizes inside the frame contradict each other."""

    code = "bad-frame"


class FrameTooLarge(ProtocolError):
    """Longer than the agreed limit."""

    code = "frame-too-large"

    def __init__(self, frame_bytes: int, frame_bytes_max: int) -> None:
        super().__init__(f"frame of {frame_bytes} bytes, at most {frame_bytes_max} are allowed")
        self.frame_bytes, self.frame_bytes_max = frame_bytes, frame_bytes_max


class BadCommand(ProtocolError):
    """The command does not parse, is unknown, or lacks a required field."""

    code = "bad-command"


class BadEntry(ProtocolError):
    """The bytes after the command are not an entry."""

    code = "bad-entry"


class OpaqueEntry(BadEntry):
    """The entry is well formed, but only its client can read it: another codec, or encrypted."""

    code = "opaque-entry"


class RunTooLarge(ProtocolError):
    """More than one Arrow array can hold; decode fewer entries at a time."""

    code = "run-too-large"


class HandshakeError(ProtocolError):
    """Commands in an order that the handshake does not allow."""

    code = "handshake"
