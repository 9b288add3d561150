"""What administrators (REST, other brokers) may ask; the only thing that `rest` calls."""
