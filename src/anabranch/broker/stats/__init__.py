"""Stats JSON and Prometheus metrics."""
