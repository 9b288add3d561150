"""The collector runs after a number of batches, and finds cycles then; never before. Weak methods make no cycle."""

from __future__ import annotations

import gc
import weakref

import pytest

from anabranch.runtime.garbage import PORTION, Garbage, weak_call, weak_method


class Knot:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _collector_rests() -> object:
    was, thresholds = gc.isenabled(), gc.get_threshold()
    gc.disable()
    yield
    gc.set_threshold(*thresholds)
    if was:
        gc.enable()


def test_young_objects_are_scanned_in_portions() -> None:
    garbage = Garbage()
    knot = weakref.ref(Knot())
    garbage.made(PORTION - 1)
    assert knot() is not None
    garbage.made(1)
    assert knot() is None
    another = weakref.ref(Knot())
    garbage.made(PORTION - 1)
    assert another() is not None, "counted anew"


def test_objects_that_survive_one_scan_are_old() -> None:
    garbage = Garbage()
    knot = Knot()
    garbage.made(PORTION)
    gone = weakref.ref(knot)
    del knot
    garbage.made(PORTION)
    assert gone() is not None, "looked at again only with everything"
    gc.collect()
    assert gone() is None


class Owner:
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.hear = weak_call(self._hear)
        self.double = weak_method(self._double)

    def _hear(self, number: int) -> None:
        self.heard.append(number)

    def _double(self, number: int) -> int:
        return 2 * number


def test_weak_method_calls_its_object_and_does_not_keep_it() -> None:
    owner = Owner()
    owner.hear(3)
    assert (owner.heard, owner.double(4)) == ([3], 8)
    hear, double, gone = owner.hear, owner.double, weakref.ref(owner)
    del owner
    assert gone() is None, "freed by reference counting"
    hear(5)  # a notification has no effect
    with pytest.raises(ReferenceError, match=r"Owner\._double"):
        double(6)
