"""Routes of the HTTP port, one module per noun. Handlers parse a request, make one admin call and form the response.

| module | what it is |
|---|---|
| `table` | all routes, as one router |
| `web/` | the web console and what its pages need beyond Pulsar's API |
| `lookup` | which broker serves a topic |
| `topic_migration` | migration of regular topics to scalable topics |
| `topics` | topics, partitions, stats |
| `topic_maintenance` | properties, unload, compaction, single messages |
| `message_response` | a stored entry as a response |
| `topic_policies` | policies of single topics |
| `subscriptions` | subscriptions of regular topics |
| `scalable_topics` | scalable topics and their subscriptions |
| `auto_scale` | auto-scale policies of scalable topics and namespaces |
| `tenants` | tenants |
| `namespaces` | namespaces and bundles |
| `policies` | policies of namespaces |
| `permissions` | permissions of namespaces, topics and subscriptions |
| `schemas` | schemas of topics |
| `publish` | publishing over HTTP |
| `clusters` | clusters |
| `brokers` | brokers, health, metrics |
| `stores/` | the metadata store and the ledgers of the cluster |
"""
