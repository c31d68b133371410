"""Linux: one sentence to be written."""
