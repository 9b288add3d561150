"""One led topic: split, merge, delete, subscriptions, garbage collection."""
