"""Jobs: one sentence to be written."""
