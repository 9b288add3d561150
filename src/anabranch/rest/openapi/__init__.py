"""Rest/openapi."""
