"""Receiving. The same pattern."""
