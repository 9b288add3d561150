"""`anabranch storage`: moves what brokers have stored. No broker may run.

| module | what it is |
|---|---|
| `commands` | the group of verbs |
| `copy` | `storage copy`: ledgers from files to bookies |
"""
