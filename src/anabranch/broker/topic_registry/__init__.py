"""All topics that are loaded here."""
