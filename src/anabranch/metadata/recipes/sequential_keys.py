"""Sequential keys: `put_sequential(store, "/queue/item-", …)` creates `/queue/item-0000000001` and so on.

The last assigned number of a prefix is a durable record below `/.meta/sequence`, so numbers are never reused: not after
a deletion, a restart or a move to another store, which copies these records. All backends work alike; the sequences of
a store itself are not used.
"""

from __future__ import annotations

from anabranch.metadata.interface import (
    ABSENT,
    RESERVED,
    BadKey,
    MetadataStore,
    OutcomeUnknown,
    Session,
    StoreUnavailable,
    Version,
    VersionMismatch,
    check_key,
    check_value,
)

DIGITS = 10
NUMBER_MAX = 10**DIGITS - 1
RACES_MAX = 1000


class SequenceContended(StoreUnavailable):
    """Too many writers took numbers at the same time; nothing was written."""

    code = "metadata-contended"


def sequence_key(prefix: str) -> str:
    """The key of a prefix's last number: one part below the reserved key, for any prefix."""
    return f"{RESERVED}/sequence/" + prefix.replace("%", "%25").replace("/", "%2F")


def sequential_key(prefix: str, number: int) -> str:
    if number > NUMBER_MAX:
        raise BadKey(f"{prefix}: all {NUMBER_MAX} numbers are used")
    return f"{prefix}{number:0{DIGITS}d}"


async def take_number(store: MetadataStore, prefix: str) -> int:
    """The next number of the prefix, unique. A number whose write has an unknown outcome is skipped."""
    key = sequence_key(prefix)
    for _ in range(RACES_MAX):
        found = await store.get(key)
        number = 1 if found is None else int(found.value) + 1
        try:
            await store.put(key, b"%d" % number, expected=ABSENT if found is None else found.version)
        except VersionMismatch:
            await store.sync()  # the next read sees the write that was first
        except OutcomeUnknown:
            await store.sync()  # the number may be taken: it is skipped
        else:
            return number
    raise SequenceContended(f"{prefix}: no number after {RACES_MAX} attempts")


async def put_sequential(
    store: MetadataStore, prefix: str, value: bytes, *, session: Session | None = None
) -> tuple[str, Version]:
    """Write `value` under the next key of the prefix.

    OutcomeUnknown: the key is missing now, but may have existed or may still appear. Numbers grow in the order they
    were taken; a key may appear shortly after one with a higher number.
    """
    check_key(sequential_key(prefix, 0))
    check_value(prefix, value)
    while True:
        key = sequential_key(prefix, await take_number(store, prefix))
        try:
            return key, await store.put(key, value, expected=ABSENT, session=session)
        except VersionMismatch:
            continue  # written by hand: leave it
        except OutcomeUnknown as error:
            await store.sync()
            found = await store.get(key)
            if found is None:
                raise OutcomeUnknown(f"{key}: no answer, and the key is missing") from error
            return key, found.version
