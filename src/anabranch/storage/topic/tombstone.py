"""Tombstones: records of topics that do not exist, at the key of the topic itself.

The owner of the topic's slot writes a tombstone in its ownership epoch. A former owner that resumes can therefore
neither overwrite it nor create the topic again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.model.errors import AlreadyExists
from anabranch.storage.interface import Superseded
from anabranch.storage.record_store import RecordRaced, RecordStore
from anabranch.storage.topic.topic_open import record_key
from anabranch.storage.topic.topic_record import TopicRecord, decode_record, encode_record, tombstone_of


@dataclass(frozen=True, slots=True)
class TopicPresence:
    """State of a topic according to its record, without opening it."""

    exists: bool
    is_half_deleted: bool = False  # opening the topic finishes the deletion
    properties: Mapping[str, str] = field(default_factory=dict)  # of the topic or of its tombstone


async def peek_topic(name: str, metadata: RecordStore) -> TopicPresence:
    found = await metadata.load(record_key(name))
    if found is None:
        return TopicPresence(exists=False)
    record = decode_record(found.value)
    return TopicPresence(not record.is_deleted, record.is_deleted and not record.is_tombstone, record.properties)


async def clear_tombstone(name: str, metadata: RecordStore, is_old: Callable[[Mapping[str, str]], bool]) -> bool:
    """Delete a tombstone whose properties are old; True if it was deleted. An existing topic is left alone."""
    key = record_key(name)
    found = await metadata.load(key)
    record = None if found is None else decode_record(found.value)
    if found is None or record is None or not record.is_tombstone or not is_old(record.properties):
        return False
    try:
        await metadata.remove(key, version=found.version)
    except RecordRaced:
        return False  # the topic has just been created again
    return True


async def write_tombstone(
    name: str, metadata: RecordStore, properties: Mapping[str, str], *, ownership_epoch: int | None = None
) -> None:
    """Durable when it returns. AlreadyExists if the topic exists, Superseded if a later owner has opened it."""
    key = record_key(name)
    while True:
        found = await metadata.load(key)
        old = TopicRecord(epoch=0) if found is None else decode_record(found.value)
        if ownership_epoch is not None and old.ownership_epoch > ownership_epoch:
            raise Superseded(
                f"{name} was opened in ownership epoch {old.ownership_epoch}, later than {ownership_epoch}"
            )
        if found is not None and not old.is_tombstone:
            raise AlreadyExists(f"{name} exists")
        tombstone = tombstone_of(
            replace(old, ownership_epoch=old.ownership_epoch if ownership_epoch is None else ownership_epoch),
            properties,
        )
        try:
            await metadata.save(key, encode_record(tombstone), version=None if found is None else found.version)
        except RecordRaced:
            continue
        return
