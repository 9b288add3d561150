"""Commands that send and receive messages.

| module | what it is |
|---|---|
| `client_options` | options and error hints shared by the commands |
| `interruption` | SIGINT and SIGTERM: the first ends the work early, the second the process |
| `produce` `consume` | `anabranch produce`, `anabranch consume` |
| `tail` | `anabranch tail`: messages without a subscription |
| `bench` | `anabranch bench`: open-loop load with percentiles |
| `input_lines` | lines of a file or pipe as they arrive |
| `schedule` | which messages are due, and their payloads |
| `sender` | sends messages and counts receipts |
| `histogram` | latency buckets |
"""
