"""A topic as storage sees it: a chain of ledgers, a metadata record that lists them, and a state log for cursors.

Does not know producers, consumers, keys or message formats.

| module | what it is |
|---|---|
| `topic_log` | `TopicLog`: append, read, terminate, trim, delete |
| `topic_open` | opens a topic: seals its ledgers, raises the epoch, replays cursors; finishes deletions |
| `topic_record` | the metadata record of a topic, as a value and as JSON |
| `ownership` | writes the record by compare-and-set, and detects another owner |
| `topic_appender` | the append path, including the switch to the next ledger |
| `topic_reader` | the read path across ledgers; skips damaged entries |
| `topic_state` | cursors and named blobs |
| `retention` | decides which ledgers may be dropped |
| `next_ledger` | a ledger that is allocated and not announced yet |
| `ledger_garbage` | ledgers that are unused but not deleted yet |
| `compacted_view` | a compacted ledger: entries under their original positions |
| `compacted_view_swap` | replaces the compacted view by a new one |
| `tombstone` | records of topics that do not exist |
| `topic_log_stats` | values for stats and metrics |
"""
