"""Backend in memory: for tests, demos and simulations, with injected faults.

| module | what it is |
|---|---|
| `store` | the store: a client of the data |
| `data` | keys, versions and sessions, as a server would hold them |
| `sessions` | keep-alives of sessions, ordered delivery of events |
| `faults` | faults between store and data, per operation |
| `key_tree` | the names below each key |
"""
