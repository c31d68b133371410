"""Log: one sentence to be written."""
