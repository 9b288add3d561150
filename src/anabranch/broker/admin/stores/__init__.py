"""The stores of a cluster, for administrators.

| module | what it is |
|---|---|
| `metadata_migration` | moving the metadata to another store |
| `ledgers` | ledgers on Apache BookKeeper: where they are, what is wrong, orphans |
"""
