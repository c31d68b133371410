"""Schema: one sentence to be written."""
