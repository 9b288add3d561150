"""Cli/serve."""
