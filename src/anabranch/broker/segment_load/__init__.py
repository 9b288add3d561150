"""Load of the segments that this broker owns: measured, and reported when it matters (PIP-483).

The package must not know what a leader decides from a report.

| module | what it is |
|---|---|
| `load_meter` | rates of one segment over 60 s and 5 s, and whether they are to be reported |
| `load_reporter` | looks at active segments every second, writes reports, sends them to the leader |
| `load_records` | reports in the metadata store |
"""
