"""Ledgers on Apache BookKeeper: a client of our own, and the storage port on it.

Needs bookies 4.17.3 or newer: older ones confirm writes to a ledger that was fenced and deleted.

| module | what it is |
|---|---|
| `ledger_store` | `BookKeeperLedgerStore`: implements `LedgerStore` |
| `settings` | the storage URL as a value |
| `ledger_writer` | writer of one ledger: shell of `writer_state` |
| `delivery` | confirms the entries of all ledgers once per turn, while the broker's session is valid |
| `ledger_reads` | reads with fall-back over replicas |
| `ledger_recovery` | closes the ledger of another writer: shell of `recovery_state` |
| `bookie_directory` | which bookies there are, with watches |
| `placement` | choice of bookies, pure |
| `bookies` | connections to all bookies, with delays after failures |
| `bookie_connection` | one connection: pipelined requests, deadlines |
| `ledger_nodes` | ledgers in ZooKeeper: ids, compare-and-set |
| `packets` | protocol version 2 of bookies: requests to bytes, bytes to answers |
| `entry_body` | what a bookie stores of an entry, with its digest |
| `entry_head` | counters in front of each payload, instead of an index file |
| `ledger_metadata` | metadata of a ledger, its encoding, its path |
| `writer_state` | state machine: pending entries, ensemble changes, close |
| `recovery_state` | state machine: closes the ledger of another writer |
| `ledger_check` | what is wrong with the ledgers of a cluster, pure |
| `ledger_inspection` | lists, checks and recovers ledgers for operators |
| `errors` | errors beside those of the storage port |

The simulation of both machines under faults: `tests/simulation/test_bookkeeper_ledgers.py`. Real bookies:
`tests/integration/bookkeeper`.
"""
