"""The binary protocol: one connection and what its commands do."""
