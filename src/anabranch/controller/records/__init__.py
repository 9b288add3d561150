"""The controller's stored values, their codecs and keys. It does not know the store (`record_store`) or the machines.

| module | what it is |
|---|---|
| `keys` | keys in the metadata store |
| `record_cache` | cache of decoded topic records |
| `subscription_registry` | the subscriptions of a topic |
| `topic_record` | the topic record and its edits: plan, seal, commit, abort, prune |
| `topic_record_codec` | the topic record as JSON, with the names of Pulsar's PIPs |
"""
