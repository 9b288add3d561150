"""The automatic creation of topics, as a namespace's policy."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.catalog.policy_fields import topic_creation
from anabranch.model.errors import NotAllowed


@pytest.mark.parametrize("kind", [None, ""])
def test_creation_is_switched_off_without_a_type(kind: Any) -> None:
    body = {"allowAutoTopicCreation": False, "topicType": kind}
    assert topic_creation(body, {}) == {"allowAutoTopicCreation": False}


def test_empty_type_is_refused_where_creation_is_allowed() -> None:
    with pytest.raises(NotAllowed, match="unknown topic type"):
        topic_creation({"allowAutoTopicCreation": True, "topicType": ""}, {})
