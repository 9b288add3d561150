"""Commands that send and receive messages.

| module | what it is |
|---|---|
| `client_options` | options and error hints shared by the commands |
| `produce` `consume` | `anabranch produce`, `anabranch consume` |
| `bench` | `anabranch bench`: open-loop load with percentiles |
| `schedule` | which messages are due, and their payloads |
| `sender` | sends messages and counts receipts |
| `histogram` | latency buckets |
"""
