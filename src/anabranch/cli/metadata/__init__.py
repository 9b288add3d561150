"""Cli/metadata."""
