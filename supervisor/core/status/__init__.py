"""Status: one sentence to be written."""
