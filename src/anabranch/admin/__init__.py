"""Administration over HTTP: `AdminClient(url, token=…)` speaks the admin REST of Anabranch and of Apache Pulsar."""

from __future__ import annotations

from anabranch.admin.client import AdminClient, Answer
from anabranch.admin.errors import AdminError, Refused, Unreachable

__all__ = ["AdminClient", "AdminError", "Answer", "Refused", "Unreachable"]
