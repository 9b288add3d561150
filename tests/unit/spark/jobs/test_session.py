"""How a job's failure is told, and that nothing of ours is left redirected."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from anabranch.cli.output.stderr_capture import captured_stderr
from anabranch.spark.jobs.session import NoSpark, addresses, first_cause, open_session

WRAPPED = """An exception was thrown in a Python worker.
Traceback (most recent call last):
  File "x.py", line 1, in y
anabranch.client.errors.NotReady: the broker is not ready
During handling of the above exception, another exception occurred:
anabranch.client.errors.TopicNotFound: topic://public/default/x is not there

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
"""
JAVAS = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: [MASTER_URL_INVALID] Could not parse Master URL: 'nonsense'.
\tat org.apache.spark.SparkContext$.x(SparkContext.scala:1)
"""


def test_our_own_words_are_found() -> None:
    assert first_cause(WRAPPED) == "topic://public/default/x is not there"
    assert first_cause("[DIVIDE_BY_ZERO] Division by zero.\nmore") == "[DIVIDE_BY_ZERO] Division by zero."
    assert first_cause(" ") == "Spark does not say why"
    assert first_cause(JAVAS) == "[MASTER_URL_INVALID] Could not parse Master URL: 'nonsense'."


def test_where_masters_listen() -> None:
    assert addresses("spark://one:7077,two") == [("one", 7077), ("two", 7077)]
    assert addresses("sc://[::1]:99/;token=x") == [("::1", 99)]
    assert addresses("sc://somewhere") == [("somewhere", 15002)]
    assert [addresses(one) for one in ("local[2]", "yarn", "k8s://https://x:443")] == [[], [], []]
    with pytest.raises(NoSpark, match="spark://one:many is no address of a Spark master"):
        addresses("spark://one:many")


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "spark:/one", "sc://", "http://one:7077"])
def test_what_is_no_master_is_told_at_once(master: str) -> None:
    with pytest.raises(NoSpark, match=f"{re.escape(master)} is no Spark master: local, "):
        open_session(master, "job")


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_master_that_is_not_there_is_told_at_once(scheme: str) -> None:
    with socket.socket() as unheard:  # bound, so that no other process takes the port; not listening
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with pytest.raises(NoSpark, match=f"no Spark master listens at 127.0.0.1:{port}: "):
            open_session(f"{scheme}://127.0.0.1:{port}", "job")


def test_others_are_hushed_and_we_are_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sys.stderr
    with captured_stderr():
        os.write(2, b"noise of another process\n")
        print("our own words", file=sys.stderr)
    assert sys.stderr is before
    assert capfd.readouterr().err == "our own words\n"
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="it fails"), captured_stderr():
        os.write(2, b"what went wrong\n")
        raise RuntimeError("it fails")
    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == "what went wrong\n"
    assert str(kept) in capfd.readouterr().err
    kept.unlink()
    with pytest.raises(KeyboardInterrupt), captured_stderr():
        os.write(2, b"what is cut short is always loud\n")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""
    with captured_stderr(is_off=True):
        os.write(2, b"aloud\n")
    assert capfd.readouterr().err == "aloud\n"
