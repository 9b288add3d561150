"""Messages, ids, entries: values."""
