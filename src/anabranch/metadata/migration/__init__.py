"""Migration of the metadata of a running cluster to another store, after PIP-454.

    source    pre-copy … PREPARATION … COPYING … COMPLETED          (the record of the source decides)
    writes    go on      wait at the gate                 go on, in the target

It knows stores, sessions and gates, and nothing of topics or brokers.

| module | what it is |
|---|---|
| `record` | records and keys of the protocol |
| `switching_store` | the store that a process uses; its real store can be replaced |
| `participant_state` `participant` | the part of every process: machine and shell |
| `coordinator_state` `coordinator` | the process that copies and decides: machine and shell |
| `copy` `tree_digest` | scan, changed keys, comparison |
| `pacing` | rate limit of the copy |
| `follow` | opens the store that a moved one names |
| `tool` | writes of programs that are no brokers |
| `service` | start, status, abort and verify |
"""
