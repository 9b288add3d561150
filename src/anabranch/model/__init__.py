"""Frozen values and pure functions. Imports only the standard library, and does not know stores, wire formats or HTTP.

| module | what it is |
|---|---|
| `errors` | the error root, and kinds of failure that all layers share |
| `names` | names of topics, namespaces, subscriptions and segments |
| `position` | position of an entry in a topic |
| `keyhash` | hash of a key, and the values derived from it |
| `partition_hash` | hashes by which v4 clients choose a partition, and how the hash of a topic is found |
| `hashrange` | the 16-bit hash ring and its ranges |
| `routing` | maps a key or sequence id to a position on the ring |
| `segment` | one segment of a scalable topic |
| `entry_buckets` | entry buckets of a segment, and the bucket of a stamp |
| `layout` | all segments of a scalable topic, as a DAG |
| `replacement` | split, merge and migration: N parents become M children |
| `reached` | progress of a checkpoint group's member in one segment |
| `schema` | schema types, compatibility strategies and definitions |
| `subscription_type` | subscription types, numbered as on the wire |
| `metadata_keys` | metadata keys of scalable topics |
| `broker_incarnation` | one run of a broker process |
| `autoscale` | automatic split and merge: policy, load, decision |
| `topic_pattern` | regular expressions over topic names, matched in linear time |

Nothing is re-exported, so that importing the package loads only the error root and `anabranch --version` stays fast.
"""
