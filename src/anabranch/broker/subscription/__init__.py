"""From a durable entry to a consumer, and its acknowledgement."""
