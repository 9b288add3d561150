"""A topic as a chain of ledgers."""
