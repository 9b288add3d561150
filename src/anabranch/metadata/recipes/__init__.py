"""Sessions, elections, membership on the port."""
