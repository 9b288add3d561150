"""Backend in memory."""
