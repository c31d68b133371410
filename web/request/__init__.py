"""Request: one sentence to be written."""
