"""Usage: one sentence to be written."""
