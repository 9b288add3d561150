"""Rows in a fixed number of buckets by key, each wholly in one task: what `producers=buckets` of the sink wants.

A query that shuffles may have other partitions when a batch runs again; buckets stay what they are, whatever the number
of tasks. Works on Spark Connect, too: only the DataFrame's own methods are used.
"""

from __future__ import annotations

from typing import Any

from anabranch.spark.client.access import BadSparkOption

BUCKET = "bucket"
BUCKETS_MAX = 65_536


def to_buckets(rows: Any, count: int, key: str = "key") -> Any:
    """The rows with a column `bucket`, 0 to `count` - 1 by their key, and each bucket in one partition. Rows without a
    key are in bucket 0."""
    from pyspark.sql import functions as f

    if not 1 <= count <= BUCKETS_MAX:
        raise BadSparkOption(f"there can be 1 to {BUCKETS_MAX} buckets, not {count}")
    if key not in rows.columns:
        raise BadSparkOption(f"there is no column {key}; there are {', '.join(rows.columns)}")
    hashed = f.coalesce(f.crc32(f.col(key).cast("binary")), f.lit(0))
    return rows.withColumn(BUCKET, f.pmod(hashed, f.lit(count)).cast("int")).repartitionById(count, BUCKET)
