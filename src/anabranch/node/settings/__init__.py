"""Node/settings."""
