"""Signed HTTP calls between the brokers of a cluster (today spread over `rest`, `cluster`, `broker`, `node`)."""
