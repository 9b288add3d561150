"""Cli/admin."""
