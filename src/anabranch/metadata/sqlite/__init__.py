"""Embedded backend."""
