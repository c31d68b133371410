"""Text: one sentence to be written."""
