"""Cursors: acknowledgements and their state log."""
