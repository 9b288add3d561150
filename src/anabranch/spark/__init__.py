"""The data pipeline: Spark reads and writes topics, as batches and as streams, through PySpark's Python data sources.

| module | what it is |
|---|---|
| `data_source` | the data source `anabranch`: schema, readers, writers |
| `options` | options of source and sink |
| `encryption_options` | options of source and sink for encryption |
| `columns` | columns of a topic, as Spark and Arrow types |
| `offsets` | positions of a query and the next batch; pure |
| `client` | connections to brokers, used in drivers and executors |
| `source` | reading: planning, admission, read tasks, the stream reader |
| `sink` | writing: write tasks, replay check |
| `jobs` | `copy`, `audit`, `stats`, `simulate` |
| `registration` | which Python the workers run |
| `lag_listener` | lag of streaming queries, for metrics |

`from anabranch.spark import register; register(spark)`, or install the package where Spark runs: Spark finds the module
`pyspark_anabranch` by itself. Importing this package needs neither Spark nor Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anabranch.model.errors import Error

if TYPE_CHECKING:
    from anabranch.spark.jobs.audit import Verdict, audit
    from anabranch.spark.jobs.copy import Copied, CopyJob, copy
    from anabranch.spark.jobs.scaling_policy import ScalePolicy
    from anabranch.spark.jobs.simulate import RecordedTraffic, Simulation, recorded, simulate, synthetic
    from anabranch.spark.jobs.stats import TopicStats, stats
    from anabranch.spark.lag_listener import Lag, LagListener
    from anabranch.spark.sink.buckets import to_buckets
    from anabranch.spark.source.offsets_at_time import offsets_at

_EXTRA = ("pyspark", "pyarrow", "numpy", "pandas")  # packages of the extra, and what they need
_PUBLIC = {
    "audit": "jobs.audit",
    "Verdict": "jobs.audit",
    "copy": "jobs.copy",
    "CopyJob": "jobs.copy",
    "Copied": "jobs.copy",
    "stats": "jobs.stats",
    "simulate": "jobs.simulate",
    "Simulation": "jobs.simulate",
    "RecordedTraffic": "jobs.simulate",
    "recorded": "jobs.simulate",
    "synthetic": "jobs.simulate",
    "ScalePolicy": "jobs.scaling_policy",
    "TopicStats": "jobs.stats",
    "offsets_at": "source.offsets_at_time",
    "to_buckets": "sink.buckets",
    "Lag": "lag_listener",
    "LagListener": "lag_listener",
}


def register(spark: Any) -> None:
    """Make the format `anabranch` known to a session, also a remote one (Spark Connect).

    Raises an error that names `PYSPARK_PYTHON` if the Python of Spark's workers does not have this package.
    """
    source = _imported("data_source").AnabranchSource
    _imported("registration").register_source(spark, source)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_imported(_PUBLIC[name]), name)


def _imported(module: str) -> Any:
    """A module of this package. Raises SparkMissing if the packages of the extra are not installed."""
    try:
        return importlib.import_module(f"anabranch.spark.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise SparkMissing(error.name) from error


class SparkMissing(Error, ImportError):
    """A package that Spark sources and jobs need is not installed."""

    code = "not-installed"

    def __init__(self, package: str | None) -> None:
        super().__init__(f"{package} is not installed; Spark needs further packages: pip install 'anabranch[spark]'")


__all__ = [
    "Copied",
    "CopyJob",
    "Lag",
    "LagListener",
    "RecordedTraffic",
    "ScalePolicy",
    "Simulation",
    "TopicStats",
    "Verdict",
    "audit",
    "copy",
    "offsets_at",
    "recorded",
    "register",
    "simulate",
    "stats",
    "synthetic",
    "to_buckets",
]
