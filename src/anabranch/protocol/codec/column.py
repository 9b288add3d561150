"""One input column: a list, or an Arrow array. Checks its content and finds the buffers of an Arrow array.

Arrow is recognised without importing it, because a caller that passes an array has imported pyarrow already.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from anabranch.model.errors import Error

Column = Any
"""A list, or an Arrow array or chunked array (the types of an optional library cannot be named here)."""

Numbers: TypeAlias = "array[int] | memoryview"
Pairs: TypeAlias = "tuple[Numbers, Any, Any]"
Loose = tuple[Any, int, Any, Any, int, int, bool]
"""Offsets, bytes per offset, data, validity bits or None, first row, number of rows, whether it is text."""

_NAMES = {"binary": (4, False), "large_binary": (8, False), "string": (4, True), "large_string": (8, True)}


class BadColumn(Error):
    """A column with invalid content."""

    code = "bad-column"


def is_arrow(column: Column) -> bool:
    return hasattr(column, "buffers") or hasattr(column, "chunks")


def rows_of(column: Column, name: str) -> list[Any]:
    """The column as a list; a list is returned unchanged."""
    if is_arrow(column):
        return list(_whole(column, name).to_pylist())
    return column if isinstance(column, list) else list(column)


def loose(column: Column, name: str) -> list[Any] | Loose:
    """For the native loops: a list, or the buffers of an Arrow array of bytes or text."""
    if not is_arrow(column):
        return column if isinstance(column, list) else list(column)
    whole = _whole(column, name)
    width, is_text = _NAMES[str(whole.type)]
    validity, offsets, data = whole.buffers()
    empty = b"\0" * (width * (whole.offset + len(whole) + 1)) if offsets is None else offsets
    return empty, width, b"" if data is None else data, validity, whole.offset, len(whole), is_text


def _whole(column: Any, name: str) -> Any:
    """One array of bytes or text."""
    if hasattr(column, "chunks"):
        column = column.combine_chunks()
    kind = str(column.type)
    if kind.startswith("dictionary"):
        column = column.dictionary_decode()
        kind = str(column.type)
    if kind.startswith("fixed_size_binary") or (name == "values" and kind == "string"):
        column, kind = column.cast("binary"), "binary"
    elif name == "values" and kind == "large_string":
        column, kind = column.cast("large_binary"), "large_binary"
    if kind not in _NAMES:
        raise BadColumn(f"{name} is an Arrow column of {kind}, not of bytes or text")
    return column


def numbers(column: Column | None, rows: int, name: str) -> Numbers | None:
    """Signed 64-bit numbers; a missing one is 0. Arrow timestamps are converted to milliseconds."""
    if column is None:
        return None
    try:
        found = _arrow_numbers(column, name) if is_arrow(column) else array("q", [one or 0 for one in column])
    except (TypeError, OverflowError) as cause:
        raise BadColumn(f"{name} holds a value that is not a 64-bit number") from cause
    if len(found) != rows:
        raise BadColumn(f"{name} has {len(found)} rows, expected {rows}")
    return found


def _arrow_numbers(column: Any, name: str) -> Numbers:
    column = column.combine_chunks() if hasattr(column, "chunks") else column
    if str(column.type).startswith("timestamp"):
        column = column.cast("timestamp[ms]", safe=False).cast("int64")
    if str(column.type) != "int64":
        raise BadColumn(f"{name} is an Arrow column of {column.type}, not of int64 or a timestamp")
    if column.null_count:
        column = column.fill_null(0)
    if not len(column):
        return array("q")
    return memoryview(column.buffers()[1])[8 * column.offset : 8 * (column.offset + len(column))].cast("q")


def pairs(column: Column | None, rows: int, given: Callable[[Column, str], Any]) -> Pairs | None:
    """Properties: start of each row's pairs, then all names and all values as returned by `given`; None if there are
    none.
    """
    if column is None:
        return None
    if len(column) != rows:
        raise BadColumn(f"properties has {len(column)} rows, expected {rows}")
    if is_arrow(column):
        column = column.combine_chunks() if hasattr(column, "chunks") else column
        if not str(column.type).startswith("map<string, string"):
            raise BadColumn(f"properties is an Arrow column of {column.type}, not of map<string, string>")
        if rows and not column.null_count and not column.items.null_count:
            starts = column.offsets
            raw = memoryview(starts.buffers()[1])[4 * starts.offset : 4 * (starts.offset + rows + 1)].cast("i")
            return (raw, given(column.keys, "properties"), given(column.items, "properties"))
        column = column.to_pylist()
    return _listed_pairs(column)


def _listed_pairs(column: Sequence[Mapping[str, str] | Sequence[tuple[str, str]] | None]) -> Pairs | None:
    starts = array("i", [0])
    names: list[str] = []
    texts: list[str] = []
    for row in column:
        for name, text in row.items() if isinstance(row, Mapping) else row or ():
            if not isinstance(name, str) or not isinstance(text, str):
                raise BadColumn("properties holds a value that is not text")
            names.append(name)
            texts.append(text)
        starts.append(len(names))
    return (starts, names, texts) if names else None
