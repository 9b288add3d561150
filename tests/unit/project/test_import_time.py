"""Importing the package, and its client, is quick and loads no more than it must; so does making Spark's rows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BUDGET_SECONDS = 0.15
LAZY = ("cramjam", "avro", "fastavro", "pydantic", "h11", "anabranch.broker", "anabranch.rest", "pyarrow", "numpy")

MEASURE = """
import sys, time
began = time.process_time()
import anabranch
{more}
print(time.process_time() - began)
print([name for name in {lazy} if name in sys.modules])
"""


ROWS = """
import sys
import pyarrow as pa
from anabranch.protocol import codec
from anabranch.protocol.codec.run import NAMES
from anabranch.model.position import Position
from anabranch.spark.client.entry_fetcher import Stored
from anabranch.spark.source.arrow_rows import decode, record_batch

made = codec.write([b"v"] * 300, ["k"] * 300, producer_name="p", publish_time=1, event_times=[1] * 300)[0]
entries = [Stored(Position(1, number), one.data) for number, one in enumerate(made)]
found = decode(entries)
names = [*NAMES, "topic", "segment", "message_id"]
kinds = {"topic": pa.string(), "segment": pa.int64(), "message_id": pa.binary()}
schema = pa.schema([(name, kinds[name] if name in kinds else found.arrow(name).type) for name in names])
batch = record_batch(found, entries, "t", 7, schema)
batch.validate(full=True)
assert batch.num_rows == 300, batch.num_rows
assert "pandas" not in sys.modules
"""

CHECKSUM = """
import sys
import numpy as np
import pyarrow as pa
from anabranch.spark.sink.row_checksum import RowChecksum

ends = pa.py_buffer(np.array([0, 1, 2, 3, 3, 4], np.int32))
texts = pa.Array.from_buffers(pa.binary(), 4, [pa.py_buffer(bytes([0b10111])), ends, pa.py_buffer(b"abcd")], -1, 1)
checksum = RowChecksum(0).with_rows(0, np.array([0, 2, 3]), texts, texts)
assert "pandas" not in sys.modules
assert texts.to_pylist() == [b"b", b"c", None, b"d"], texts
assert checksum == RowChecksum(0).with_rows(0, [0], texts, texts).with_rows(0, [2, 3], texts, texts)
assert checksum != RowChecksum(0).with_rows(0, [0, 1, 3], texts, texts)
"""


def best_of(runs: int, more: str) -> tuple[float, str]:
    """CPU seconds of the quickest run, so that a busy machine does not count; and what was loaded that need not be."""
    times, loaded = [], ""
    for _ in range(runs):
        script = MEASURE.format(more=more, lazy=LAZY)
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        seconds, loaded = ran.stdout.splitlines()
        times.append(float(seconds))
    return min(times), loaded


def test_importing_the_package_is_quick() -> None:
    seconds, loaded = best_of(3, "")
    assert seconds <= BUDGET_SECONDS
    assert loaded == "[]"


def test_the_client_loads_what_it_needs_and_nothing_else() -> None:
    _, loaded = best_of(1, "anabranch.connect")
    assert loaded == "[]"


@pytest.mark.parametrize("codec", ["native", "python"])
def test_rows_for_spark_do_not_import_pandas(codec: str) -> None:
    """Arrow loads it where it is installed, for values from Python; each worker would pay for that."""
    environment = {**os.environ, "ANABRANCH_CODEC": codec}
    ran = subprocess.run([sys.executable, "-c", ROWS], capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr


def test_row_checksum_does_not_import_pandas() -> None:
    ran = subprocess.run([sys.executable, "-c", CHECKSUM], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
