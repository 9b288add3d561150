"""One connection, the pool, reconnecting."""
