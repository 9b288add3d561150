"""What is stored: values and codecs."""
