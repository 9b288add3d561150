"""Ledger files: format, index, reading."""
