"""The schema registry: versions of the schemas of topics, and which schema may follow which.

It must not know connections or HTTP.

| module | what it is |
|---|---|
| `registry` | registers, finds and deletes versions in the metadata store |
| `compatibility` | validity of a schema, and compatibility of two |
| `policy` | what a namespace says about schemas |
| `stale_cache` | serves the last value while the metadata store is unavailable |
| `counters` | counts of registry operations by namespace |
| `settings` | settings of the registry |
"""
