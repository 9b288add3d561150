"""Ledger files and the chain of ledgers of a topic. Does not know the commit log, topics or cursors.

| module | what it is |
|---|---|
| `record_format` | bytes of one stored entry, of group heads and file heads |
| `ledger_files` | paths of ledger and index files, open files, syncing |
| `sparse_index` | index of one ledger: offsets and running totals of some entries |
| `ledger_reader` | reads entries, counts, times and lengths from files |
| `record_runs` | decodes a run of sound entries from a block, in C or Python |
| `record_scanner` | reads records one by one and steps over damage |
| `ledger_chain` | the ledgers of one topic in order, with running totals |
| `ledger_ids` | allocates ledger ids that are never used twice |
"""
