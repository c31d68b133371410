"""Tasks: one sentence to be written."""
