"""The HTTP port of the broker: Pulsar's admin REST API.

It calls `broker/admin` and must not know topics, storage or the cluster.

| module | what it is |
|---|---|
| `server` | HTTP/1.1 connections on h11: keep-alive, limits, deadlines |
| `router` | routes as data, and the route of a request |
| `routes/` | the routes, one module per noun |
| `isolation` | which requests of a browser are served: host names, origins, read-only |
| `relay` | passes a page's request on to the broker that serves the topic |
| `encoding` | ETags and gzip |
| `event_stream` | server-sent events and live answers |
| `static_files` | files of the web pages: the data in `console/` |
| `access` | authentication and authorization of a request |
| `http_message` | request and response as values |
| `params` | topic names, message ids and numbers in paths, queries and bodies |
| `errors` | HTTP status of each error code |
| `openapi/` | the OpenAPI document and the page that shows it |
| `settings` | settings of the HTTP port |
"""
