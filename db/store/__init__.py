"""Store: one sentence to be written."""
