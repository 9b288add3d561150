"""Found by Spark itself: every top-level module named `pyspark_…` with a `DefaultSource` is a data source."""

from __future__ import annotations

from anabranch.spark.data_source import AnabranchSource as DefaultSource

__all__ = ["DefaultSource"]
