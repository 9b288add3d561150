"""One led topic: split, merge, delete, subscriptions, garbage collection. It does not know connections.

| module | what it is |
|---|---|
| `adoption` | first steps of a migration: the partitions and their subscriptions |
| `gc_policy` | decides which sealed segments can be deleted |
| `gc_runner` | gathers the input of `gc_policy` and prunes |
| `leader_terms` | leader terms, which grow per topic name |
| `operation_events` | calls, events and effects of `operation_workflow` |
| `operation_permit` | the running operation's permit at the gate of metadata writes |
| `operation_progress` | answers of the segment owners for the running operation |
| `operation_workflow` | machine: split, merge, prune and delete, resumable |
| `seek_target` | where a seek moves the cursor of one segment |
| `subscription_events` | calls, events and effects of `subscription_workflow` |
| `subscription_workflow` | machine: subscribe, unsubscribe and seek on all segments |
| `topic_controller` | shell of one topic and leader term: runs both workflows and the groups |
"""
