"""Time marks at the begin and end of chosen calls in this process, for traces of an operation across components.

`time.perf_counter` counts from the same moment in every process of a machine, so marks of a broker and of its clients
can be merged. A mark costs about a microsecond. Only for benchmarks.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

Mark = tuple[float, str]


class Marks:
    def __init__(self) -> None:
        self.rows: list[Mark] = []
        self._tasks: list[asyncio.Task[Any]] = []

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

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Until the process ends."""
        self._tasks.append(task)

    def time(self, owner: Any, name: str, label: str, *, longer_than_s: float) -> None:
        """Calls of a plain function that take long; of any thread."""
        call = getattr(owner, name)

        @functools.wraps(call)
        def timed(*args: Any, **named: Any) -> Any:
            before = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                if (took := time.perf_counter() - before) > longer_than_s:
                    self.add(f"{label} {took * 1000:.0f} ms")

        setattr(owner, name, timed)

    def watch_collector(self, process: str) -> None:
        """Pauses of the garbage collector, from half a millisecond on."""
        began = [0.0]

        def tell(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                began[0] = time.perf_counter()
            elif (took := time.perf_counter() - began[0]) > 0.0005:
                self.add(f"{process}: garbage collected, generation {info['generation']}, {took * 1000:.1f} ms")

        gc.callbacks.append(tell)

    async def watch_loop(self, process: str, longer_than_s: float = 0.01) -> None:
        """Marks stalls of the event loop until cancelled. The load of the machine is included."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            if (late := time.perf_counter() - before) > longer_than_s:
                self.add(f"{process}: loop stood still for {late * 1000:.0f} ms")

    def watch_threads(self, process: str, longer_than_s: float = 0.01) -> None:
        """Measures the round trip between two threads until the process ends. A slow round trip means that every worker
        thread of the process is slow; none of our locks is involved."""
        there: SimpleQueue[float] = SimpleQueue()
        back: SimpleQueue[float] = SimpleQueue()

        def echo() -> None:
            while True:
                back.put(there.get())

        def call() -> None:
            while True:
                time.sleep(0.005)
                there.put(time.perf_counter())
                if (took := time.perf_counter() - back.get()) > longer_than_s:
                    self.add(f"{process}: a round trip between two threads took {took * 1000:.0f} ms")

        for work in (echo, call):
            threading.Thread(target=work, daemon=True).start()

    def save(self, path: Path) -> None:
        path.write_text("".join(f"{at:.6f} {label}\n" for at, label in self.rows))


def load(path: Path) -> list[Mark]:
    rows = (line.split(" ", 1) for line in path.read_text().splitlines())
    return [(float(at), label) for at, label in rows]
