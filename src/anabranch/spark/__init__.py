"""The data pipeline: Spark reads and writes topics."""
