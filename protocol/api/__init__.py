"""Api: one sentence to be written."""
