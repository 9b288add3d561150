"""Keys and JSON fields that brokers store in the metadata are what the snapshot says."""

from __future__ import annotations

import pytest

from tests.compatibility import snapshot, stored_metadata


def test_stored_metadata_keys_and_json_fields_are_unchanged() -> None:
    snapshot.check("metadata", stored_metadata.collect())


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("/topics/acme/orders/scale", "/topics/{tenant}/{namespace}/{topic}"),
        (
            "/topics/acme/orders/scale/groups/1838/stream",
            "/topics/{tenant}/{namespace}/{topic}/groups/#/{subscription}",
        ),
        ("/schemas/acme/orders/schema-json/anabranch-standalone-1a1e-s1", "/schemas/{tenant}/{namespace}/{topic}/{id}"),
        ("/managed/acme/orders/persistent/plain", "/managed/{tenant}/{namespace}/persistent/{topic}"),
        ("/managed/acme/orders/segment/scale/0000-7fff-0", "/managed/{tenant}/{namespace}/segment/{topic}/{segment}"),
        ("/partitioned/persistent/acme/orders/parts", "/partitioned/persistent/{tenant}/{namespace}/{topic}"),
        ("/tenants/acme", "/tenants/{tenant}"),
        ("deduplicationEnabled", "deduplicationEnabled"),
        ("stream-1", "{consumer}"),
        ("17", "#"),
    ],
)
def test_parts_of_keys_that_vary_become_patterns(key: str, expected: str) -> None:
    assert stored_metadata.pattern(key) == expected
