"""Frozen values and pure functions: names, positions, key hashes and the error root. Imports nothing but the stdlib."""

from __future__ import annotations

from anabranch.model.errors import Error
from anabranch.model.names import Domain, SegmentDescriptor, TopicName
from anabranch.model.position import EARLIEST, LATEST, Position

__all__ = ["EARLIEST", "LATEST", "Domain", "Error", "Position", "SegmentDescriptor", "TopicName"]
