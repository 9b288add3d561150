"""One topic: its producers, its subscriptions, its policies and its maintenance.

A topic must not know which other topics are loaded, which broker owns it, or how commands arrive.

| module | what it is |
|---|---|
| `topic` | one loaded persistent topic |
| `topic_hooks` | what a special kind of topic, such as a segment, adds to a topic |
| `non_persistent_topic` | one loaded non-persistent topic |
| `topic_producers` | attached producers, access mode and fencing epochs |
| `topic_subscriptions` | subscriptions and their cursors |
| `takeover` | takes a producer name or exclusive subscription over from a dead connection |
| `position_resolver` | resolves earliest, latest and times to positions |
| `policy_limits` | limits of the policies as checks |
| `topic_rate_limits` | publish, dispatch and subscribe rates |
| `housekeeping` | TTL, backlog quotas, expired subscriptions |
| `backlog_quota` | decides whether a backlog exceeds its quota |
| `inactive_topics` | decides when an inactive topic is deleted |
| `compaction` | keeps the last message of each key |
"""
