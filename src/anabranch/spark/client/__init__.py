"""Brokers as Spark processes use them."""
