"""Process: one sentence to be written."""
