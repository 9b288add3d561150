"""Signed HTTP calls between the brokers of a cluster.

It must not know REST routes, topics or the cluster's slot table.

| module | what it is |
|---|---|
| `peer_calls` | `@peer_call` declares a call; `PeerCalls` serves the declared ones |
| `client` | makes a signed call |
| `connections` | pool of connections to the other brokers |
| `endpoint` | admits signed requests and serves them |
| `signature` | signatures of requests and answers |
| `secret` | the cluster's secret, in the metadata store |
| `errors` | why a call failed |
"""
