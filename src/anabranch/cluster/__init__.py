"""Membership and slot ownership of the brokers of one cluster.

Topic names hash to 256 slots; a table in the metadata store says which broker incarnation holds each slot. An elected
director changes the table when brokers come, die or are loaded unevenly. The package knows no topics and no
connections.

| module | what it is |
|---|---|
| `broker_info` | registration record of a broker, with its codec |
| `cluster` | this broker as a member: registers, follows the table, holds slots |
| `cluster_view` | latest table and registrations that this broker knows |
| `director` | state machine that decides the next table |
| `director_runner` | runs the director while this broker is elected |
| `load_balancing` | slot exchanges between unevenly loaded brokers |
| `load_report` | what a broker reports of its load, and when |
| `planned_moves` | moves that an administrator asks for |
| `slot_assignment` | which broker gets which slot |
| `slot_holder` | state machine of the slots that this broker holds |
| `slot_table` | the table as a value, with its codec |
| `slot_table_store` | the table's record in the metadata store |
| `slots` | from a topic's name to its slot |
"""
