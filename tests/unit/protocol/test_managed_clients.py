"""The mark of clients that follow a migration."""

from __future__ import annotations

import pytest

from anabranch.protocol.managed_clients import MANAGED, is_managed, managed


def test_mark_is_added_to_the_metadata_of_the_application() -> None:
    assert managed({"team": "billing"}) == {"team": "billing", MANAGED: "true"}
    assert is_managed(managed()) and is_managed(managed({MANAGED: "false"}))


@pytest.mark.parametrize("metadata", [{}, {"team": "billing"}, {MANAGED: "false"}, {MANAGED: ""}])
def test_client_without_the_mark_is_a_v4_client(metadata: dict[str, str]) -> None:
    assert not is_managed(metadata)
