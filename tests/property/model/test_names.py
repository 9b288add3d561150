"""Any text is either a name that comes back unchanged, or BadName."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import BadName
from anabranch.model.names import TopicName, check_subscription_name

DOMAINS = ["", "persistent://t/n/", "non-persistent://t/n/", "topic://", "segment://t/n/x/", "t/n/"]


def named(text: str) -> TopicName | None:
    try:
        return TopicName.parse(text)
    except BadName:
        return None


@given(st.sampled_from(DOMAINS), st.text(max_size=60))
def test_parse_is_stable_or_refuses(prefix: str, text: str) -> None:
    name = named(prefix + text)
    if name is None:
        return
    assert TopicName.parse(str(name)) == name
    assert str(name).encode().decode() == str(name)
    if name.segment is None:
        assert TopicName.from_rest(name.domain, name.tenant, name.namespace, name.encoded_local) == name
        assert "/" not in name.encoded_local and name.encoded_local.isascii()
    if name.partition_index >= 0:
        assert name.base.partition(name.partition_index) == name


@given(st.text(max_size=60))
def test_every_local_name_is_a_valid_subscription_name(text: str) -> None:
    if named(f"persistent://t/n/{text}") is not None and text == text.strip():
        assert check_subscription_name(text) == text
