"""Session: one sentence to be written."""
