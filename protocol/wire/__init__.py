"""Wire: one sentence to be written."""
