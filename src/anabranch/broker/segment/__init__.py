"""One segment of a scalable topic: a topic that can be sealed and drained."""
