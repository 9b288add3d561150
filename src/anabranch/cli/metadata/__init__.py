"""`anabranch metadata`: reads, changes, exports and imports the contents of a metadata store, without a broker.

| module | what it is |
|---|---|
| `commands` | the group `anabranch metadata` and its verbs |
| `store_access` | opens a store and reports its failures in one line |
| `read` | `ls`, `get`, `watch` |
| `write` | `put`, `rm` |
| `export_import` | `export`, `import` |
| `key_tree` | keys as a tree, for `ls` |
"""
