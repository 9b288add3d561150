"""Text for people. Everything but `terminal`, `repeat`, `progress` and `stderr_capture` is pure.

| module | what it is |
|---|---|
| `terminal` | text of others on a terminal, without its control characters |
| `tables` | tables, lists and pairs |
| `scalable_topic` | a scalable topic as tables and as a drawing of its segments |
| `autoscaling` | what auto-scaling would do and why not |
| `layout_changes` | splits and merges between two layouts |
| `topic_changes` | differences between two stats answers of a scalable topic |
| `peeked_message` | a stored entry as messages |
| `repeat` | a look that is repeated: redrawn on a terminal, printed when it changes elsewhere |
| `progress` | a progress line on the terminal |
| `stderr_capture` | redirects standard error of child processes to a file |
"""
