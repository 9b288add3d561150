"""Keys with growing numbers: `put_sequential(store, "/queue/item-", …)` makes `/queue/item-0000000001` and so on.

The last number given under a prefix is a durable record below `/.meta/sequence`, so numbers are never given again: not
after a deletion, not after a restart, and not after a move to another store, which has to bring those records along.
Every backend does it alike; nothing of a store's own sequences is used.
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
    """Very many others took numbers at the same time; nothing was written."""

    code = "metadata-contended"


def sequence_key(prefix: str) -> str:
    """Where the last number of a prefix is kept: one part below the reserved key, whatever the prefix holds."""
    return f"{RESERVED}/sequence/" + prefix.replace("%", "%25").replace("/", "%2F")


def sequential_key(prefix: str, number: int) -> str:
    if number > NUMBER_MAX:
        raise BadKey(f"{prefix}: all {NUMBER_MAX} numbers are used")
    return f"{prefix}{number:0{DIGITS}d}"


async def take_number(store: MetadataStore, prefix: str) -> int:
    """The next number of this prefix; nobody else gets it. A number whose write got lost is skipped."""
    key = sequence_key(prefix)
    for _ in range(RACES_MAX):
        found = await store.get(key)
        number = 1 if found is None else int(found.value) + 1
        try:
            await store.put(key, b"%d" % number, expected=ABSENT if found is None else found.version)
        except VersionMismatch:
            await store.sync()  # whoever was first is seen by the next read
        except OutcomeUnknown:
            await store.sync()  # given to us or not: not used either way
        else:
            return number
    raise SequenceContended(f"{prefix}: no number after {RACES_MAX} tries")


async def put_sequential(
    store: MetadataStore, prefix: str, value: bytes, *, session: Session | None = None
) -> tuple[str, Version]:
    """Write `value` under the next key of the prefix.

    OutcomeUnknown: the key is not there, but it may have been, or may still come. Numbers grow in the order they
    were taken; a key may appear a moment after one with a higher number.
    """
    check_key(sequential_key(prefix, 0))
    check_value(prefix, value)
    while True:
        key = sequential_key(prefix, await take_number(store, prefix))
        try:
            return key, await store.put(key, value, expected=ABSENT, session=session)
        except VersionMismatch:
            continue  # put there by hand: not ours to touch
        except OutcomeUnknown as error:
            await store.sync()
            found = await store.get(key)
            if found is None:
                raise OutcomeUnknown(f"{key}: no answer, and it is not there") from error
            return key, found.version
