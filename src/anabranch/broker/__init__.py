"""The broker: serves topics to clients over Pulsar's binary protocol, and to administrators.

It meets the controller of scalable topics only through the ports `controller.interface` and `controller.segment_host`.
It must not know the REST interface, the command line, or how a node wires its parts.

| module | what it is |
|---|---|
| `client_connection` | port to a client's connection, for producers, consumers and topics |
| `close_notifications` | CLOSE_PRODUCER and CLOSE_CONSUMER frames that wait until the new owner serves the topic |
| `errors` | errors of serving, each with a stable code |
| `peers` | port to the other brokers of the cluster |
| `placement` | port: which broker serves which topic |
| `services` | the parts of the broker that a connection is given; names for producers, consumers, schemas |
| `settings` | settings of serving |
| `token_bucket` | rate limits as token buckets |
| `wire` | the binary protocol: one connection and its commands |
| `publish` | from SEND to receipt |
| `subscription` | from a durable entry to a consumer, and its acknowledgement |
| `topic` | one topic |
| `topic_registry` | all topics that are loaded on this broker |
| `segment` | one segment of a scalable topic |
| `segment_host` | the controller's requests for segments, routed to their owner |
| `segment_load` | load of the segments of this broker, measured and reported |
| `catalog` | tenants, namespaces, policies and names in the metadata store |
| `schemas` | the schema registry |
| `stats` | stats JSON and Prometheus metrics |
| `admin` | what REST and other brokers may ask of this broker |
"""
