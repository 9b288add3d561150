"""Tenants, namespaces, policies and topic names in the metadata store.

It must not know connections or loaded topics.

| module | what it is |
|---|---|
| `catalog` | reads and writes the records of tenants, namespaces, clusters and partitioned topics |
| `catalog_watch` | applies policy and permission changes that another broker made |
| `migrated_topics` | regular topics that became scalable topics |
| `name_conflicts` | one name for a regular and a scalable topic: which of them stays |
| `policies` | the policies in force for the topics or segments of a namespace |
| `policy_fields` | the policies as data: path, verb, stored key, parser |
| `bundles` | hash ranges of a namespace |
"""
