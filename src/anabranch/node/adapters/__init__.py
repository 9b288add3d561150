"""Implementations of ports that need two layers."""
