"""Redirects standard error of this process and its children (Spark's JVM) to a file, while our own messages still
reach the terminal. The file is kept and named when the work fails, and deleted otherwise.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def captured_stderr(*, is_off: bool = False) -> Iterator[None]:
    """Processes that are started in here inherit the file as their standard error."""
    if is_off:
        yield
        return
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    handle, path = tempfile.mkstemp(prefix="anabranch-spark-", suffix=".log")
    sys.stderr.flush()
    terminal, before = os.dup(2), sys.stderr
    os.dup2(handle, 2)
    os.close(handle)
    sys.stderr = os.fdopen(os.dup(terminal), "w", buffering=1)
    is_of_use = True
    silence = logging.NullHandler()  # py4j logs a traceback of every call that Ctrl-C cuts short
    logging.getLogger().addHandler(silence)
    try:
        yield
        is_of_use = False
    except KeyboardInterrupt:
        is_of_use = False
        raise
    finally:
        logging.getLogger().removeHandler(silence)
        sys.stderr.close()
        sys.stderr = before
        os.dup2(terminal, 2)
        os.close(terminal)
        if not is_of_use or os.path.getsize(path) == 0:
            os.unlink(path)
        else:
            click.echo(f"Spark's own words are in {path}", err=True)
