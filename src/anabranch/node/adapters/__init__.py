"""Implementations of ports that need two layers, for example a port of the broker on the metadata store.

| module | what it is |
|---|---|
| `inactive_cleanup` | deletes schema and policies of an inactive topic |
| `metadata_records` | topic records of storage in the metadata store |
| `peer_endpoint` | HTTP endpoint for the peer calls of other brokers |
| `peers` | the other brokers of the cluster, for the broker's port `BrokerPeers` |
| `placement` | where topics are served, from the cluster's slot table |
| `segment_logs` | logs of segments on this node's storage and metadata |
| `store_events` | events of the ledger store for topics and cluster session |
| `topic_layouts` | records of scalable topics, for the owners of segments |
"""
