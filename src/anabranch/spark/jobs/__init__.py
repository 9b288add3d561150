"""The jobs of `anabranch spark …`; each is also a function of `anabranch.spark`.

| module | what it is |
|---|---|
| `copy` | topic to topic, topic to Parquet, Parquet to topic |
| `audit` | completeness, duplicates and order per key |
| `stats` | distribution of messages over segments, keys and time |
| `simulate` | what a scaling policy would have done |
| `scaling_policy` | the policy of a simulation, and what is in its answer |
| `plots` | drawings of stats and simulations |
| `session` | the Spark session of a job |
"""
