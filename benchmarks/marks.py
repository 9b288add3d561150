"""When certain calls begin and end, in this process: for traces of things that happen once and pass through many hands.

`time.perf_counter` counts from the same moment in every process of a machine, so marks of a broker and of its clients
can be laid side by side. Costs about a microsecond per mark; only for benchmarks. Knows nothing of what is marked.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Mark = tuple[float, str]


class Marks:
    def __init__(self) -> None:
        self.rows: list[Mark] = []

    def add(self, label: str) -> None:
        self.rows.append((time.perf_counter(), label))

    def watch(self, owner: Any, name: str, label: Callable[..., str | None] | str, *, end: bool = True) -> None:
        """From now on calls of `owner.name` are marked; `label` is a text, or makes one of the arguments (None: not
        this call). `end`: mark also when it is over."""
        call = getattr(owner, name)

        def text(*args: Any, **named: Any) -> str | None:
            return label if isinstance(label, str) else label(*args, **named)

        @functools.wraps(call)
        async def later(*args: Any, **named: Any) -> Any:
            what = text(*args, **named)
            if what is None:
                return await call(*args, **named)
            self.add(what)
            try:
                return await call(*args, **named)
            finally:
                if end:
                    self.add(f"{what}: done")

        @functools.wraps(call)
        def now(*args: Any, **named: Any) -> Any:
            what = text(*args, **named)
            if what is not None:
                self.add(what)
            return call(*args, **named)

        setattr(owner, name, later if inspect.iscoroutinefunction(call) else now)

    def save(self, path: Path) -> None:
        path.write_text("".join(f"{at:.6f} {label}\n" for at, label in self.rows))


def load(path: Path) -> list[Mark]:
    rows = (line.split(" ", 1) for line in path.read_text().splitlines())
    return [(float(at), label) for at, label in rows]
