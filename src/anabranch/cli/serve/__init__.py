"""Commands that start brokers.

| module | what it is |
|---|---|
| `standalone` | `anabranch standalone`: flags to settings, then a node |
| `broker` | `anabranch broker`: one broker of a cluster |
| `multi_broker` | `standalone --brokers N`: commands of the broker processes |
| `ready_banner` | the text that a broker prints when it is ready |
"""
