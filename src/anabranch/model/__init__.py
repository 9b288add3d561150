"""Frozen values and pure functions; nothing here imports more than the stdlib.

| module     | knows                                                                       |
|------------|-----------------------------------------------------------------------------|
| `errors`   | the error root and the kinds of failure all floors share                    |
| `names`    | names of topics, namespaces, subscriptions, segments                        |
| `position` | where an entry is in its topic                                              |
| `keyhash`  | the hash of a key and its views                                             |
| `hashrange` `routing` | the 16-bit ring; how a key or sequence id gets its place on it       |
| `segment` `layout` | one segment of a scalable topic; all of them as a DAG                   |
| `replacement` | split, merge, migration: N parents become M children                     |

Re-exports nothing: importing the package loads the error root only, and `anabranch --version` stays quick.
"""
