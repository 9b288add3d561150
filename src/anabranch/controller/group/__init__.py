"""The consumers of a topic's ordered subscriptions (Kafka: group coordinator).

It knows the topic's leader only by the Protocol `TopicLeader`, and does not import `controller/topic`.

| module | what it is |
|---|---|
| `assignment` | machine: which consumer has which segment |
| `assignment_record` | the stored form of an assignment |
| `checkpoint_progress` | positions that members of a checkpoint group have reported |
| `consumer_sessions` | machine: sessions by consumer name, with grace periods |
| `continuation` | which segments a member may read before their ancestors are drained |
| `drain_tracker` | machine: which segments are drained, and which are open |
| `group_coordinator` | shell of one group; `ConsumerLink` is one connection of a consumer |
| `group_events` | events and effects of `group_state` |
| `group_record` | the stored record of a group |
| `group_state` | machine of one group: sessions, drain tracker and assignment, stored together |
| `implicit_leave` | detects that a client without a LEAVE command is gone |
| `owner_requests` | requests to segment owners, retried until confirmed |
| `retention_holds` | retention holds of checkpoint groups |
| `sharing` | which members share a segment, and who reads which entry buckets |
| `stall_watch` | warns about sealed segments that are not acknowledged while others wait |
| `topic_groups` | the groups of one topic |
| `topic_leader` | Protocol: the topic's leader, as its groups need it |
"""
