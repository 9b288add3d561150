"""What a request for a migration of the metadata may hold."""

from __future__ import annotations

import pytest

from anabranch.model.errors import BadRequest
from anabranch.rest.http_message import Request
from anabranch.rest.routes.stores.metadata_migration import _fields


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"[]", b'"x"', b"\xff", b"1"])
def test_bodies_that_are_no_object_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        _fields(Request("POST", "/start", body=body))


def test_fields_come_from_the_body_and_the_query() -> None:
    assert _fields(Request("POST", "/start")) == {}
    body = b'{"targetUrl": "a", "rate": 1}'
    query = {"target": "b", "purgeTarget": "true"}
    assert _fields(Request("POST", "/start", body=body, query=query)) == {
        "targetUrl": "b",
        "rate": 1,
        "purgeTarget": True,
    }
