"""Cursors: which messages of a topic a subscription has acknowledged, and how that is stored.

Does not know subscriptions, consumers or dispatch. Cursors of one topic share one state log.

| module | what it is |
|---|---|
| `cursor` | one cursor: acknowledgements, message counts, changes to be written |
| `ack_state` | mark-delete position, individually acknowledged entries, partial batches |
| `ack_bitmap` | acknowledged entries of one ledger as bits |
| `state_log` | writes changes of cursors and blobs as deltas and snapshots |
| `state_codec` | bytes of the state log's records |
| `state_replay` | folds state records into cursors and blobs |
"""
