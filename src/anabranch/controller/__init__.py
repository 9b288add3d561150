"""The controllers of scalable topics. Knows no broker; both meet through ports of this floor (`host`, `face`, `place`).

What is decided, values and machines decide; nothing in them waits:

| module         | decides                                                                                  |
|----------------|------------------------------------------------------------------------------------------|
| `record`       | what is stored of a topic, and how one step changes it                                   |
| `record_codec` | the same as JSON, with PIP-468's names                                                   |
| `assignment`   | which consumer of a subscription has which segment; revoke, release, grant               |
| `drain`        | which segments an ordered subscription is through with, and which are open for it        |
| `gc`           | which sealed segments may go                                                             |
| `host`         | the port to the owners of segments; `host_memory` is its model in memory                 |
| `operation`    | split, merge, prune, delete: the journaled workflow; `steps` are its events and effects  |
| `registry`     | what is stored of a topic's subscriptions                                                |
| `subscriptions`| subscribe, unsubscribe, seek: a cursor on every segment                                  |
| `sessions`     | who is a consumer of an ordered subscription, also without a connection                  |
| `farewells`    | which clients without a word for leaving have left                                       |
| `group`        | sessions, drain gate and assignment of one subscription, stored together                 |

What they decide, the shells do, and tell them what came of it:

| module         | does                                                                                     |
|----------------|------------------------------------------------------------------------------------------|
| `service`      | all of it for one broker: `controllers` and `watches`                                    |
| `controllers`  | which topics are led here: loaded, resumed, unloaded; every call                         |
| `leader`       | one topic, one term: runs `operation` and `subscriptions`                                |
| `members`      | the consumers of one subscription: runs `group`; `sitting` is one consumer's place       |
| `collecting`   | asks what `gc` needs to know, and has pruned what may go                                 |
| `watches`      | layouts, told in order to whoever watches                                                |
| `records`      | the machines' reads and writes on the metadata store; `paths` are the keys               |
| `offices`      | terms of office, which grow per topic name                                               |
| `rules`        | what namespaces say; `settings`: what the broker says                                    |
| `telling`      | what a leader knows, for people                                                          |

Re-exports nothing.
"""
