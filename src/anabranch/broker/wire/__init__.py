"""The binary protocol: one client connection and its commands.

A command set decodes its commands, checks permissions and calls the services. It must not know how topics store or
dispatch entries.

| module | what it is |
|---|---|
| `server` | accepts connections up to a limit and closes them at the end |
| `connection` | one connection: frames in and out, keep-alive, back-pressure |
| `authentication_flow` | authentication at CONNECT, and again when credentials expire |
| `http_clients` | HTTP clients on the binary port are answered in their protocol |
| `lookup_commands` | LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE |
| `producer_commands` | PRODUCER, SEND, CLOSE_PRODUCER |
| `consumer_commands` | SUBSCRIBE, FLOW, ACK, SEEK and the other commands of a consumer |
| `schema_commands` | GET_SCHEMA, GET_OR_CREATE_SCHEMA |
| `scalable_subscription_commands` | seek and unsubscribe of scalable topics |
| `scalable_topic_commands` | layout sessions and consumers of scalable topics |
| `scalable_list_commands` | WATCH_SCALABLE_TOPICS, WATCH_SCALABLE_TOPICS_CLOSE |
| `topic_list_commands` | WATCH_TOPIC_LIST, WATCH_TOPIC_LIST_CLOSE |
| `topic_extent_commands` | TOPIC_EXTENT: stored range and sizes of a topic |
"""
