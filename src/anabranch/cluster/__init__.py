"""Several brokers as one system: who is there, who holds what, who takes over. Knows no topics and no connections."""
