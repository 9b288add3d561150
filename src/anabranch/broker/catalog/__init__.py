"""Tenants, namespaces, policies and topic names in the metadata store.

It must not know connections or loaded topics.

| module | what it is |
|---|---|
| `catalog` | reads and writes the records of tenants, namespaces and partitioned topics |
| `cluster_records` | the records of clusters |
| `catalog_watch` | applies policy and permission changes that another broker made |
| `migrated_topics` | regular topics that became scalable topics |
| `name_conflicts` | one name for a regular and a scalable topic: which of them stays |
| `partition_holds` | a migration against growth and deletion of the same partitioned topic |
| `policies` | the policies in force for a topic or segment |
| `policy_fields` | the policies as data: path, verb, stored key, parser |
| `topic_policies` | the policies of single topics as data: path, key, default, level, where enforced |
| `topic_policy_records` | stored policies of single topics, merged over their namespace's |
| `namespace_lists` | topics of watched namespaces, as they come and go |
| `topic_lists` | which of them are persistent topics |
| `scalable_lists` | which of them are scalable topics, and their properties |
| `topic_lists_state` | names, digests and differences of topic lists |
| `bundles` | hash ranges of a namespace |
"""
