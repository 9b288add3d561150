"""`anabranch admin`: the nouns and verbs of pulsar-admin, over the admin REST.

A verb is data (name, options, REST call); `verb` turns it into a click command.

| module | what it is |
|---|---|
| `commands` | the group `anabranch admin` and its nouns |
| `verb` | a verb as data, and the command made from it |
| `policy_verbs` | get-, set- and remove- verbs of one policy |
| `tenants` | verbs of tenants and clusters |
| `namespaces` `namespace_policies` `backlog_quotas` | verbs of namespaces |
| `topics` `topic_maintenance` `subscriptions` | verbs of topics and their subscriptions |
| `scalable_topics` `topic_migration` `auto_scale` | verbs of scalable topics and auto-scale policies |
| `topic_policies` | policies of single topics: `topic-policies`, and under `topics` |
| `schemas` | verbs of schemas |
| `brokers` | verbs of brokers |
| `ledgers` | `ledgers`: copies on bookies, orphans |
| `metadata_migration` | `metadata-migration`: moving the metadata to another store |
"""
