"""Many messages at once, as `receive_batch` returns them: a sequence of messages, or columns.

`Message` objects are made only when they are accessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from anabranch.client.messages.entry_contents import DeliveredEntry
from anabranch.client.messages.message import Message, MessageId
from anabranch.protocol.codec.run import NAMES

COLUMNS = ("key", "value", "properties", "publish_time", "event_time", "sequence_id", "producer_name")


class MessageBatch(Sequence[Message]):
    """Messages in the order in which `receive` would have returned them. Acknowledge the batch as a whole
    (`consumer.ack(batch)`, `consumer.ack_cumulative(batch)`) or message by message."""

    def __init__(self, parts: Sequence[Sequence[Message]], delivery: int = -1) -> None:
        self.parts = parts
        self.delivery = delivery  # running number of its last message within its stream consumer

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} messages>"

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Message]:
        for part in self.parts:
            yield from part

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return list(self)[index]
        place = index + len(self) if index < 0 else index
        for part in self.parts:
            if 0 <= place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(f"message {index} of {len(self)}")

    @property
    def last(self) -> MessageId:
        """The id of its last message."""
        return last_id(self.parts[-1])

    def values(self) -> list[Any]:
        """The bodies, decoded by the consumer's schema if it has one; None for a tombstone."""
        found: list[Any] = []
        for part in self.parts:
            if isinstance(part, DeliveredEntry) and part.is_untouched:
                found += part.contents.values()
            else:
                found += [message.value for message in part]
        return found

    def keys(self) -> list[str | bytes | None]:
        found: list[str | bytes | None] = []
        for part in self.parts:
            if isinstance(part, DeliveredEntry) and part.is_untouched:
                found += part.contents.keys()
            else:
                found += [message.key for message in part]
        return found

    def to_arrow(self, names: Sequence[str] = COLUMNS) -> Any:
        """A `pyarrow.Table` of these columns, without a copy where Arrow has the same memory layout. A null value (a
        tombstone) is null; `key` is text (null if it is not valid text), `key_bytes` has every key. Times are UTC."""
        import pyarrow as pa

        for name in names:
            if name not in _OF_MESSAGES:
                raise KeyError(f"no column {name!r}; the columns are {', '.join(_OF_MESSAGES)}")
        batches = [_arrow(pa, part, names) for part in self.parts]
        return pa.Table.from_batches(batches, schema=None if batches else _schema(pa, names))


def last_id(part: Sequence[Message]) -> MessageId:
    return part.last if isinstance(part, DeliveredEntry) else part[-1].id


def _arrow(pa: Any, part: Sequence[Message], names: Sequence[str]) -> Any:
    if isinstance(part, DeliveredEntry):
        run = part.contents.run()
        batch = run.to_arrow(names)
        if part.is_whole:
            return batch
        indexes = memoryview(run.columns.index).cast("B").cast("i")
        return batch.filter(pa.array([bool(part.wanted >> index & 1) for index in indexes]))
    arrays = [
        pa.array([_OF_MESSAGES[name](one) for one in part], kind.type)
        for name, kind in zip(names, _schema(pa, names), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _schema(pa: Any, names: Sequence[str]) -> Any:
    time, kinds = pa.timestamp("ms", "UTC"), {"key": pa.string(), "producer_name": pa.string()}
    kinds |= dict.fromkeys(("key_bytes", "value", "schema_version"), pa.binary())
    kinds |= dict.fromkeys(("publish_time", "event_time"), time)
    kinds |= {"sequence_id": pa.int64(), "batch_index": pa.int32(), "properties": pa.map_(pa.string(), pa.string())}
    return pa.schema([(name, kinds[name]) for name in names])


def _key_text(message: Message) -> str | None:
    try:
        return message.key.decode() if isinstance(message.key, bytes) else message.key
    except UnicodeDecodeError:
        return None


_OF_MESSAGES: dict[str, Callable[[Message], Any]] = {
    "key": _key_text,
    "key_bytes": lambda one: one.key.encode() if isinstance(one.key, str) else one.key,
    "value": lambda one: None if one.is_tombstone else one.data,
    "properties": lambda one: list(one.properties.items()),
    "publish_time": lambda one: one.publish_time,
    "event_time": lambda one: one.event_time,
    "sequence_id": lambda one: one.sequence_id,
    "producer_name": lambda one: one.producer_name,
    "batch_index": lambda one: one.id.batch_index,
    "schema_version": lambda one: one.schema_version or None,
}
assert set(_OF_MESSAGES) < set(NAMES)
