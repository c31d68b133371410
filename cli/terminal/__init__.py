"""Terminal: one sentence to be written."""
