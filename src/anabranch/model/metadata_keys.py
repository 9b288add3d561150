"""Keys of scalable topics in the metadata store. Names in, keys out; local names are percent-encoded.

/topics/TENANT/NAMESPACE/NAME                     the topic record, at the path that PIP-468 defines
/partitioned/persistent/TENANT/NAMESPACE/NAME     number of partitions of a regular topic
/topics/TENANT/NAMESPACE/NAME/segments/ID/load    load of an active segment, at the path that PIP-483 defines

The broker (name conflicts, layouts of segments) and the controller read the same record, so its key is defined here.
The controller's other keys are in `controller/records/keys.py`.
"""

from __future__ import annotations

from anabranch.model.errors import BadName
from anabranch.model.names import TopicName

SCALABLE_TOPICS = "/topics"
PARTITIONED_TOPICS = "/partitioned/persistent"


def scalable_namespace_key(namespace: str) -> str:
    return f"{SCALABLE_TOPICS}/{namespace}"


def scalable_topic_key(topic: TopicName) -> str:
    """The key is the same for all domains of a name (`topic://`, `persistent://`, `segment://`)."""
    return f"{SCALABLE_TOPICS}/{scalable_topic_path(topic)}"


def scalable_topic_path(topic: TopicName) -> str:
    scalable = topic.scalable
    return f"{scalable.namespace_path}/{scalable.encoded_local}"


def segment_loads_key(topic: TopicName) -> str:
    """Root of the load reports of a topic."""
    return f"{scalable_topic_key(topic)}/segments"


def segment_load_key(topic: TopicName, segment_id: int) -> str:
    return f"{segment_loads_key(topic)}/{segment_id}/load"


def loaded_segment_at(key: str, topic: TopicName) -> int | None:
    """The segment whose load report is at the key; None for other keys."""
    number, _, rest = key.removeprefix(f"{segment_loads_key(topic)}/").partition("/")
    return int(number) if rest == "load" and number.isdecimal() else None


def scalable_topic_at(key: str, root: str = SCALABLE_TOPICS) -> TopicName | None:
    """The topic at `root`/TENANT/NAMESPACE/NAME; None for keys below that, and for all other keys."""
    parts = key.removeprefix(f"{root}/").split("/")
    if not key.startswith(f"{root}/") or len(parts) != 3:
        return None
    try:
        return TopicName.from_rest("topic", *parts)
    except BadName:
        return None
