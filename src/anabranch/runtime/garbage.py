"""Memory of objects that are no longer used: references without cycles, and tuning of the garbage collector.

An object with a long life must not be part of a reference cycle when its use ends. The collector scans old objects so
rarely that a topic in a cycle stays in memory for hours after it was unloaded. So a part calls its owner through
`weak_method` or `weak_call`, which do not keep the owner alive. `tests/integration/broker/test_topic_memory.py` checks
this with the collector off.

The rest of this module tunes the collector for a process that serves for months (before that it is off: `cli.serve`).

CPython scans young objects when many more were created than freed. A broker frees about as many as it creates, because
entries leave its cache as others arrive. So young objects accumulate for seconds and are scanned in one pass: 10 to 40
ms with 1,000 busy topics, which was their p99. Here the creators of objects report them, and they are scanned in
portions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import MethodType
from typing import ParamSpec, TypeVar
from weakref import ref

P = ParamSpec("P")
R = TypeVar("R")

PORTION = 500
"""Batches of entries (an entry of a quiet topic is one) between two scans: about five thousand objects and 1 ms."""
THRESHOLDS = (5_000, 1, 1_000)
"""Thresholds for objects that are not reported.

An object that survives one scan is old; everything is scanned after about ten million. Entries of a busy topic come in
large batches and are rarely scanned, because they are many, live for a while and are never part of a cycle.
"""


class Garbage:
    def __init__(self) -> None:
        self._made = 0

    def begin(self) -> None:
        """Startup is complete: objects that exist now stay, and are never scanned again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()

    def made(self, batches: int) -> None:
        self._made += batches
        if self._made >= PORTION:
            self._made = 0
            gc.collect(1)


def weak_method(method: Callable[P, R]) -> Callable[P, R]:
    """The bound method, without a reference to its object. The caller must not outlive the object: ReferenceError."""
    owner, function = _parts(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found = owner()
        if found is None:
            raise ReferenceError(f"the object of {function.__qualname__} no longer exists")
        result: R = function(found, *args, **kwargs)
        return result

    return call


def weak_call(method: Callable[P, None]) -> Callable[P, None]:
    """The bound method as a notification: without a reference to its object, and without effect once that is gone."""
    owner, function = _parts(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        found = owner()
        if found is not None:
            function(found, *args, **kwargs)

    return call


def _parts(method: Callable[..., object]) -> tuple[ref[object], Callable[..., R]]:
    assert isinstance(method, MethodType), "only a bound method has an object"
    return ref(method.__self__), method.__func__
