"""What a client knows of a topic: its layout, the brokers of its segments, and changes to both.

| module | what it is |
|---|---|
| `topic_view` | the layout of a topic as a value; which received layouts are new |
| `namespace_watch` | keeps the list of a namespace's scalable topics current |
| `layout_watch` | keeps the layout current: a layout session with a broker, or the partition count asked periodically |
"""
