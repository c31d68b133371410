"""Server: one sentence to be written."""
