"""What the controller of a topic decides: values and machines. Knows no broker; both meet through ports of this floor.

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
| `group`        | sessions, drain gate and assignment of one subscription, stored together                 |

Re-exports nothing.
"""
