"""ETags and gzip: which answer a client gets."""

from __future__ import annotations

import gzip

import pytest

from anabranch.rest.encoding import GZIP_BYTES_MAX, GZIP_BYTES_MIN, accepts_gzip, encoded
from anabranch.rest.http_message import JSON, Request, Response

LONG = b'{"a":1}' * GZIP_BYTES_MIN


def request(method: str = "GET", **headers: str) -> Request:
    return Request(method, "/x", headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_long_json_is_compressed_for_who_accepts_it() -> None:
    made = encoded(request(accept_encoding="br, gzip"), Response(200, LONG, JSON))
    assert gzip.decompress(made.body) == LONG and len(made.body) < len(LONG) / 50
    assert made.headers == (("Vary", "Accept-Encoding"), ("Content-Encoding", "gzip"))
    plain = encoded(request(), Response(200, LONG, JSON))
    assert plain.body == LONG and plain.headers == (("Vary", "Accept-Encoding"),)


@pytest.mark.parametrize(
    "response",
    [
        Response(200, b"x" * (GZIP_BYTES_MIN - 1), JSON),
        Response(200, b"x" * (GZIP_BYTES_MAX + 1), JSON),
        Response(200, LONG, "application/octet-stream"),
        Response(200, LONG, JSON, (("Content-Encoding", "br"),)),
        Response(500, LONG, JSON),
        Response(200, LONG),
    ],
)
def test_other_answers_stay_as_they_are(response: Response) -> None:
    assert encoded(request(accept_encoding="gzip"), response) == response


@pytest.mark.parametrize(
    ("header", "accepted"),
    [("gzip", True), ("GZIP;q=0.5", True), ("*", True), ("gzip; q=0", False), ("br", False), ("", False)],
)
def test_accepted_codings(header: str, accepted: bool) -> None:
    assert accepts_gzip(request(accept_encoding=header)) is accepted


@pytest.mark.parametrize(
    ("known", "status"),
    [('"1"', 304), ('W/"1"', 304), ('"0", "1"', 304), ("*", 304), ('"2"', 200), ("", 200)],
)
def test_known_version_has_no_body(known: str, status: int) -> None:
    response = Response(200, LONG, "text/css", (("ETag", '"1"'),))
    found = encoded(request(if_none_match=known), response)
    assert found.status == status
    assert (found.body == b"") is (status == 304)
    assert dict(found.headers)["ETag"] == '"1"'
    assert encoded(request("POST", if_none_match=known), response).status == 200
