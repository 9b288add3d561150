"""Redirects that the admin client follows, and those to which it sends no token."""

from __future__ import annotations

import pytest

from anabranch.admin.errors import StrangePlace
from anabranch.admin.redirect import Place, is_family, redirected

HERE = Place("http", "127.0.0.1", 8080)


def test_path_and_query_are_kept() -> None:
    there, target = redirected(HERE, "http://127.0.0.1:8081/admin/v2/x%2Fy?force=true", has_secret=True)
    assert there == Place("http", "127.0.0.1", 8081) and target == "/admin/v2/x%2Fy?force=true"
    assert redirected(HERE, "https://localhost/", has_secret=True)[0] == Place("https", "localhost", 443)


@pytest.mark.parametrize("location", ["", "/only/a/path", "ftp://h/", "http://", "http://h:99999/", "http://h:x/"])
def test_location_that_is_not_an_address_is_refused(location: str) -> None:
    with pytest.raises(StrangePlace, match="not an address"):
        redirected(HERE, location, has_secret=False)


def test_redirect_from_tls_to_plain_text_is_refused() -> None:
    with pytest.raises(StrangePlace, match="not encrypted"):
        redirected(Place("https", "h", 443), "http://h:8080/", has_secret=False)


def test_token_is_sent_only_to_hosts_of_the_family() -> None:
    with pytest.raises(StrangePlace, match="family"):
        redirected(HERE, "http://example.com/", has_secret=True)
    assert redirected(HERE, "http://example.com/", has_secret=False)[0].host == "example.com"


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ("h", "H", True),
        ("localhost", "127.0.0.1", True),
        ("::1", "127.0.0.1", True),
        ("localhost", "broker1", False),
        ("broker1", "broker2", True),
        ("b1.pulsar.svc", "b2.pulsar.svc", True),
        ("b1.pulsar.svc", "b2.other.svc", False),
        ("b1.pulsar.svc", "b2", False),
        ("10.0.0.1", "10.0.0.2", True),
        ("10.0.0.1", "8.8.8.8", False),
        ("10.0.0.1", "b1", False),
    ],
)
def test_families(one: str, other: str, answer: bool) -> None:
    assert is_family(one, other) is is_family(other, one) is answer
