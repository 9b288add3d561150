"""Services for administrators. REST routes and other brokers call them.

They must not know HTTP. Arguments and results are values with full names; calls that other brokers may make are marked
with `@peer_call`.

| module | what it is |
|---|---|
| `service` | `BrokerAdmin`: all services by noun, health, metrics, the peer calls |
| `topic_migration` | migration of regular topics to scalable topics |
| `topics` | lookup, topics, partitions, stats |
| `topic_maintenance` | one topic: properties, unload, trim, compaction, single messages |
| `topic_policies` | policies of single topics |
| `subscriptions` | subscriptions of regular topics and their cursors |
| `scalable_topics` | scalable topics: split, merge, subscriptions, stats |
| `views` | what people look at: messages, timelines |
| `auto_scale` | auto-scale policies of scalable topics and namespaces |
| `tenants` | tenants, their namespaces, permissions |
| `namespaces` | clusters, policies of namespaces, bundles, all topics of a namespace |
| `schemas` | schemas of topics |
| `publish` | messages published without a connection |
| `brokers` | the brokers of the cluster: list, drain, configuration |
| `stores/` | the metadata store and the ledgers of the cluster |
| `owner_routing` | calls a method on the broker that serves a topic, or on all brokers |
| `partition_hashes` | the hash by which producers of a regular topic choose partitions |
| `migration_check` | what a migration of a regular topic would do and what blocks it |
| `namespace_rules` | what the controller asks about namespaces and names |
"""
