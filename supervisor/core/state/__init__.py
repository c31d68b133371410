"""State: one sentence to be written."""
