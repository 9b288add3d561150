"""Node/wiring."""
