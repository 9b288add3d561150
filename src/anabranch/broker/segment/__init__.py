"""One segment of a scalable topic on the broker that owns it: a topic that can be sealed and drained.

The package must not know where requests come from, nor which segments follow which.

| module | what it is |
|---|---|
| `adopted_topic` | a regular topic becomes a segment by a migration, or is released |
| `key_range_check` | checks that a producer routes keys as the topic does |
| `key_sampler` | histogram of the segment's load by hash, and a hot key, from sampled entries |
| `old_clients` | clients of regular topics, which an adopted partition refuses |
| `owned_segment` | a loaded segment: seal, cursors, readers, drain events |
| `pending_cursors` | SUBSCRIBEs that wait until the registry has created their cursor |
| `reader_fence` | which consumers of an ordered subscription are admitted |
| `segment_logs` | port to the logs and tombstones of segments |
| `segment_state` | what the owner stores for a segment and its cursors |
| `unmetered` | traffic of a segment without a meter |
"""
