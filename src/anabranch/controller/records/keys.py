"""Keys of the controller's records in the metadata store. User texts are always percent-encoded.

/topics/T/N/NAME                            the topic record (`model/metadata_keys.py`)
/topics/T/N/NAME/registry                   its subscriptions
/topics/T/N/NAME/groups/INCARNATION/SUB     sessions, drains and assignment of one ordered subscription
/controllers/terms/T/N/NAME                 the last leader term that was issued; deleted after the topic
/controllers/floor                          minimum for terms of topics that have no `terms` record
/controllers/wanted/T/N/NAME                unfinished work; the value is the time from which it needs a leader
"""

from __future__ import annotations

from anabranch.model.metadata_keys import scalable_topic_key, scalable_topic_path
from anabranch.model.names import TopicName, encode_component

TERM_FLOOR = "/controllers/floor"
PENDING_TOPICS = "/controllers/wanted"
_TERMS = "/controllers/terms"


def registry_key(topic: TopicName) -> str:
    return f"{scalable_topic_key(topic)}/registry"


def groups_key(topic: TopicName, incarnation: int) -> str:
    return f"{scalable_topic_key(topic)}/groups/{incarnation}"


def group_key(topic: TopicName, incarnation: int, subscription: str) -> str:
    return f"{groups_key(topic, incarnation)}/{encode_component(subscription)}"


def term_key(topic: TopicName) -> str:
    return f"{_TERMS}/{scalable_topic_path(topic)}"


def pending_key(topic: TopicName) -> str:
    return f"{PENDING_TOPICS}/{scalable_topic_path(topic)}"
