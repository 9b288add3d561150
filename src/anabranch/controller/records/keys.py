"""Where the controller's records are in the metadata store. Names in, keys out; user texts are always encoded.

/topics/T/N/NAME                      the topic record, PIP-468's place
/topics/T/N/NAME/registry             its subscriptions
/topics/T/N/NAME/groups/LIFE/SUB      sessions, drains and assignment of one ordered subscription, per incarnation
/controllers/terms/T/N/NAME           the last term of office that was given; outlives the topic until it is deleted
/controllers/floor                    no lower term is given to a topic whose own memory of terms is gone
/controllers/wanted/T/N/NAME          this topic must be led, now or from a certain time on, though nobody asks
"""

from __future__ import annotations

from anabranch.model.errors import BadName
from anabranch.model.names import TopicName, encode_component

TOPICS = "/topics"
FLOOR = "/controllers/floor"
WANTED = "/controllers/wanted"
_TERMS = "/controllers/terms"


def namespace_key(namespace: str) -> str:
    return f"{TOPICS}/{namespace}"


def record_key(topic: TopicName) -> str:
    return f"{TOPICS}/{_path(topic)}"


def registry_key(topic: TopicName) -> str:
    return f"{record_key(topic)}/registry"


def groups_key(topic: TopicName, incarnation: int) -> str:
    return f"{record_key(topic)}/groups/{incarnation}"


def group_key(topic: TopicName, incarnation: int, subscription: str) -> str:
    return f"{groups_key(topic, incarnation)}/{encode_component(subscription)}"


def term_key(topic: TopicName) -> str:
    return f"{_TERMS}/{_path(topic)}"


def wanted_key(topic: TopicName) -> str:
    return f"{WANTED}/{_path(topic)}"


def topic_at(key: str, root: str = TOPICS) -> TopicName | None:
    """The topic whose record is at this key; None for what lies below a record, or anywhere else."""
    parts = key.removeprefix(f"{root}/").split("/")
    if not key.startswith(f"{root}/") or len(parts) != 3:
        return None
    try:
        return TopicName.from_rest("topic", *parts)
    except BadName:
        return None


def _path(topic: TopicName) -> str:
    scalable = topic.scalable
    return f"{scalable.namespace_path}/{scalable.encoded_local}"
