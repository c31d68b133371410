"""Site: one sentence to be written."""
