"""Loop: one sentence to be written."""
