"""One test that hangs must not take the whole run with it: a plugin that fails it after `LIMIT_S`. Knows no test.

The timer's signal is raised as a failure wherever the main thread waits, also in the event loop of an asynchronous
test; the stacks of all threads are shown. What follows on the same worker goes on.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

LIMIT_S = float(os.environ.get("ANABRANCH_TEST_SECONDS_MAX", "900"))
"""For its fixtures, for itself and for its end. `make test` gives less: several times what the longest one takes."""
AGAIN_S = 10.0
"""Code that catches everything may have swallowed it."""

_stderr = os.dup(2)  # pytest puts a file of its own in its place
Wrapper = Generator[None, object, object]


@contextmanager
def _watched(item: pytest.Item, part: str) -> Iterator[None]:
    def ring(*_: object) -> NoReturn:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        faulthandler.dump_traceback(_stderr)
        pytest.fail(f"it hangs: the {part} of {item.nodeid} takes longer than {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Wrapper:
    with _watched(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Wrapper:
    with _watched(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Wrapper:
    with _watched(item, "teardown"):
        return (yield)
