"""Routes about the stores of a cluster.

| module | what it is |
|---|---|
| `metadata_migration` | moving the metadata to another store |
| `ledgers` | ledgers on Apache BookKeeper |
"""
