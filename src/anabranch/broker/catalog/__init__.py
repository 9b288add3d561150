"""Tenants, namespaces, policies, names: what exists, in the metadata store."""
