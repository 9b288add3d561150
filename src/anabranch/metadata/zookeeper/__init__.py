"""The metadata store on ZooKeeper. It uses the client in `anabranch.zookeeper` and translates its errors.

| module | what it is |
|---|---|
| `address` | `zk://` URLs |
| `paths` | keys of the port to ZooKeeper paths and back |
| `records` | nodes to records of the port and back; cache of nodes seen lately |
| `nodes` | get, put and delete of one key, listing of children |
| `bulk_read` `bulk_write` | many nodes at once, in multi-reads and multis |
| `change_events` `node_lookup` | watch events to changes of the port, and the reads this takes |
| `empty_node_sweeper` | removal of empty intermediate nodes |
| `session` | the port's session on a ZooKeeper session |
| `errors` | errors of the client to errors of the port |
| `store` | the store |
"""
