"""One broker process: wires the concrete classes of all layers and runs them.

This is the only package that names concrete classes of every layer. It decides nothing about topics or clusters.

| module | what it is |
|---|---|
| `adapters` | implementations of ports that need two layers |
| `dynamic_settings` | settings that change while brokers run |
| `native_code` | which parts run C code |
| `node` | one broker, wired, opened and closed |
| `restart` | restart of a broker process that was replaced |
| `settings` | all settings of a node |
| `standalone` | runs one node until a signal |
| `storage_copy` | function behind `anabranch storage copy` |
| `supervisor` | runs several broker processes on one machine |
| `token_commands` | functions behind `anabranch token` |
| `wiring` | the parts of `node`: stores, ports, cluster, segments, security |
"""
