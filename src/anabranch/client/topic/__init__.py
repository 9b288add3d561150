"""What the client knows of a topic."""
