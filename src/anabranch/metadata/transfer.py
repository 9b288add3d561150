"""Export, import and deletion of whole trees, with a progress count.

This is not the migration of a running cluster: writers are not stopped, so an export of a store without snapshots may
contain a change and lack an earlier one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from anabranch.metadata import archive
from anabranch.metadata.interface import (
    ABSENT,
    RESERVED,
    Item,
    MetadataStore,
    VersionMismatch,
    check_tree,
    is_within,
)
from anabranch.metadata.recipes.sequential_keys import sequence_key
from anabranch.model.errors import BadRequest, Error

PAGE_RECORDS = 2_000
PAGE_BYTES = 4_000_000
SEQUENCES = f"{RESERVED}/sequence"


class TargetNotEmpty(Error):
    """The import target has keys, and merging was not requested."""

    code = "target-not-empty"


@dataclass(slots=True)
class Tally:
    """Counts of what was done so far, for a progress display."""

    records: int = 0
    value_bytes: int = 0
    sequences: int = 0
    ephemerals: int = 0  # skipped

    def add(self, items: Iterable[Item]) -> None:
        for _, found in items:
            self.records += 1
            self.value_bytes += len(found.value)


@dataclass(frozen=True, slots=True)
class Contents:
    """Summary of a checked archive."""

    below: str
    records: int
    sequences: int
    version_max: int


async def export_lines(store: MetadataStore, below: str, tally: Tally) -> AsyncIterator[str]:
    """The archive of a tree, line by line, parents before children."""
    tree = check_tree(below)
    if is_within(tree, RESERVED):
        raise BadRequest(f"keys below {RESERVED} are reserved for their store and cannot be exported")
    await store.sync()
    yield archive.line_of(archive.Begin(below))
    async for page in store.bulk_scan(below):
        kept = [item for item in page if not item[1].ephemeral]
        tally.ephemerals += len(page) - len(kept)
        for item in kept:
            yield archive.line_of(archive.Record(item))
        tally.add(kept)
    # sequences come last: a number assigned during the scan is then in the file, even if its key is not
    async for key, found in store.scan(SEQUENCES):
        prefix = sequence_prefix(key)
        if prefix is not None and is_within(prefix, tree):
            tally.sequences += 1
            yield archive.line_of(archive.Sequence(prefix, int(found.value)))
    yield archive.line_of(archive.End(tally.records, tally.sequences))


def sequence_prefix(key: str) -> str | None:
    """The inverse of `sequence_key`; None for the parent key itself."""
    name = key.removeprefix(f"{SEQUENCES}/")
    return None if name == key else name.replace("%2F", "/").replace("%25", "%")


def check_archive(lines: Iterable[str]) -> Contents:
    """Read the whole archive without writing, so that a damaged file is refused before the first record is written."""
    below, records, sequences, version_max = "", 0, 0, 0
    end: archive.End | None = None
    for number, text in enumerate(lines, 1):
        if end is not None:
            raise archive.BadArchive(f"line {number} comes after the end line")
        match archive.parse_line(text, number):
            case archive.Begin(tree) if number == 1:
                below = tree
            case archive.Begin():
                raise archive.BadArchive(f"line {number}: a second header line")
            case _ if not below:
                raise archive.BadArchive("the first line is not the header of a metadata export")
            case archive.Record((_, found)):
                records += 1
                version_max = max(version_max, found.version)
            case archive.Sequence():
                sequences += 1
            case archive.End() as end:
                pass
    if end is None:
        raise archive.BadArchive("the end line is missing: the file was cut short")
    if (end.records, end.sequences) != (records, sequences):
        raise archive.BadArchive(f"{records} of {end.records} exported records found: the file is damaged")
    return Contents(below, records, sequences, version_max)


async def is_empty(store: MetadataStore) -> bool:
    await store.sync()
    return not await store.children("/")


async def import_lines(
    store: MetadataStore, lines: Iterable[str], contents: Contents, tally: Tally, *, merge: bool, preserve: bool
) -> None:
    """Write what `check_archive` accepted. Repeating an interrupted import is safe (with `merge`)."""
    if not merge and not await is_empty(store):
        raise TargetNotEmpty("the target is not empty")
    if preserve:
        await store.raise_versions(contents.version_max + 1)
    for page in pages_of(archive.parse_line(text, number) for number, text in enumerate(lines, 1)):
        sequences = [line for line in page if isinstance(line, archive.Sequence)]
        for sequence in sequences:
            await raise_sequence(store, sequence)
        items = [line.item for line in page if isinstance(line, archive.Record)]
        if items:
            await store.bulk_write(items, preserve=preserve)
        tally.add(items)
        tally.sequences += len(sequences)


def pages_of(lines: Iterable[archive.Line]) -> Iterator[list[archive.Line]]:
    """Pages bounded by records and bytes, so that progress is visible."""
    page: list[archive.Line] = []
    size = 0
    for line in lines:
        page.append(line)
        size += len(line.item[1].value) if isinstance(line, archive.Record) else 0
        if len(page) >= PAGE_RECORDS or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


async def raise_sequence(store: MetadataStore, sequence: archive.Sequence) -> None:
    """Never lower it: the target may have assigned higher numbers itself."""
    key = sequence_key(sequence.prefix)
    while True:
        found = await store.get(key)
        if found is not None and int(found.value) >= sequence.last:
            return
        try:
            await store.put(key, b"%d" % sequence.last, expected=ABSENT if found is None else found.version)
        except VersionMismatch:
            await store.sync()
        else:
            return


async def keys_of(store: MetadataStore, below: str, tally: Tally) -> list[str]:
    """All keys of a tree, parents before children; `tally` counts them, including ephemeral ones."""
    await store.sync()
    keys: list[str] = []
    async for page in store.bulk_scan(below):
        keys += [key for key, _ in page]
        tally.add(page)
        tally.ephemerals += sum(found.ephemeral for _, found in page)
    return keys


async def delete_keys(store: MetadataStore, keys: Sequence[str], tally: Tally) -> None:
    """Children before parents, so that an interruption leaves no orphans."""
    for start in range(len(keys), 0, -PAGE_RECORDS):
        page = keys[max(0, start - PAGE_RECORDS) : start]
        await store.bulk_delete(page[::-1])
        tally.records += len(page)
