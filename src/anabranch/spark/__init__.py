"""The data pipeline: Spark reads and writes topics, in batches and as streams, through PySpark's Python data sources.

| module                       | knows                                                                             |
|------------------------------|-----------------------------------------------------------------------------------|
| `offsets` `view` `cuts` `plan` | values and decisions: where a query is, what there is, what comes next. Pure      |
| `options` `access` `schema`  | what users say                                                                    |
| `cluster` `fetch`            | brokers: questions, ranges of entries                                             |
| `rows` `values` `reading`    | entries as Arrow                                                                  |
| `planning` `stream` `source` | what Spark calls                                                                  |

`from anabranch.spark import register; register(spark)`, or install the package where Spark runs: Spark finds the module
`pyspark_anabranch` by itself. Importing this package needs neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make the format `anabranch` known to a session, also a remote one (Spark Connect)."""
    from anabranch.spark.source import AnabranchSource

    spark.dataSource.register(AnabranchSource)


__all__ = ["register"]
