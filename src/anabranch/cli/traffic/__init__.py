"""Cli/traffic."""
