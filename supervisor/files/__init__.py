"""Files: one sentence to be written."""
