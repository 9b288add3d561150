"""What people look at in the console and on the command line. Reading only: nothing here changes a topic.

| module | what it is |
|---|---|
| `journal` | changes made over HTTP: what, by whom, when, outcome |
| `machines` | disk, file descriptors, clock and metadata store of each broker |
| `messages` | messages of a topic: the newest, or pages from a time or position on |
| `message_page` | merges pages of several logs, and says where each log goes on |
| `timeline` | timelines of scalable topics: geometry, ticks, shared feeds |
"""
