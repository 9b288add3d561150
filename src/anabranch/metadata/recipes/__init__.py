"""Recipes: coordination written once on the metadata port, for all backends. They know no backend.

Each recipe is a state machine (events in, effects out; no await, clock or randomness) and an asyncio shell around it.

| module | what it is |
|---|---|
| `session_keeper` | one session per process, opened again after every loss |
| `key_claim` | state machine that claims one ephemeral key |
| `key_claim_runner` | asyncio shell of a key claim |
| `leader_term` | state machine that gives a leader its fencing term |
| `election` | leader election with fencing terms |
| `membership` | registration of processes, and the list of them |
| `subtree_mirror` | local mirror of a subtree, kept current by a watch |
| `sequential_keys` | keys with unique, growing numbers |
| `event_stream` | async iterators over the events of a recipe |
"""
