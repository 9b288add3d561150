"""The commit log of one broker: group commit, write-behind to ledger files, checkpoints, fencing, recovery.

Does not know topics or cursors. State machines without I/O are `group_commit`, `write_behind` and `LoggedLedgers`.

| module | what it is |
|---|---|
| `append_gate` | whether appends are accepted, and translation of OS errors |
| `open_ledger` | one ledger being written: open batch, totals, entries in memory |
| `group_commit` | plans which batches form the next group, and where it is written |
| `committer` | runs groups: starts, confirms or fails them |
| `commit_log` | the log files, and writing one group |
| `write_behind` | queue of batches that are not in the ledger files yet |
| `checkpointer` | writes that queue to ledger files and deletes old log files |
| `disk_full` | refuses appends on a full device, probes for room |
| `fence` | generation number that decides which process may confirm |
| `recovery` | replays a log into the ledger files |
| `peer_recovery` | recovery of another broker's log |
| `released_ledgers` | ledgers in the log that recovery must not restore |
"""
