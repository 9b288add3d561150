"""The consumers of one ordered subscription (Kafka: group coordinator)."""
