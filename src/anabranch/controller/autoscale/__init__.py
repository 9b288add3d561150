"""Automatic splits and merges of the topics that this broker leads (PIP-483).

What to do is decided by `anabranch.model.autoscale`, a pure function; this package collects its input and performs its
result. It must not know how operations are carried out.

| module | what it is |
|---|---|
| `scaling` | what the scalers of all topics share |
| `topic_scaler` | one led topic: collects loads and consumers, evaluates, splits and merges |
| `policies` | the policy of a topic after broker settings, namespace and topic |
| `scaling_totals` | counters over all topics of the broker |
| `scaling_status` | the state of a topic's auto-scaling as plain values |
| `scaling_records` | load reports and past decisions in the metadata store |
"""
