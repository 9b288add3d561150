"""Small versioned records shared by all nodes: one port, several backends, one contract (tests/integration)."""
