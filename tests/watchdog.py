"""pytest plugin that fails a hanging test after `LIMIT_S`, so that the rest of the run continues.

The timer's signal is raised as a failure wherever the main thread waits, also in the event loop of an asynchronous
test. The stacks of all threads are printed. Later tests on the same worker run as usual.
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
"""For setup, call and teardown each. `make test` sets less: several times what the longest test takes."""
AGAIN_S = 10.0
"""The failure is raised again after this time, because code that catches everything may have swallowed it."""

_stderr = os.dup(2)  # pytest replaces descriptor 2 by a file
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
