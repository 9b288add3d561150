"""One topic."""
