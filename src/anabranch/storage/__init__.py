"""Durable storage of entries: ledgers, topics as chains of ledgers, and cursors.

Storage does not look inside payloads and does not know producers, consumers or message formats. It declares the ports
that it needs of others: `record_store` for metadata, and the disk and clock of `runtime`.

| module | what it is |
|---|---|
| `interface` | the port: `LedgerStore`, `LedgerWriter`, `AppendSink`, `StoreListener`, and the errors |
| `ledger_store` | `EmbeddedLedgerStore`, the implementation on local files |
| `ledger_reads` | its reads: recent entries from memory, older ones from ledger files |
| `write_pipeline` | its writes: group commit, write-behind, checkpoints, full device |
| `tail_cache` | bounds the memory of recent entries |
| `volume` | layout of the data directory, and the lock of each broker |
| `ledger_copy` | copies ledgers from one store to another, and compares them |
| `record_store` | port to the metadata store, for topic records and ledger ids |
| `settings` | settings of the embedded store and their bounds |
| `ledger/` | ledger files: format, index, reading; chain of a topic's ledgers |
| `log/` | commit log: group commit, write-behind, checkpoints, fencing, recovery |
| `topic/` | topic logs: append, read, retention, compacted view, deletion |
| `cursor/` | cursors: acknowledgements, and their state log |
| `bookkeeper/` | ledgers on Apache BookKeeper: `BookKeeperLedgerStore`, and the client below it |
"""
