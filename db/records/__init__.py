"""Records: one sentence to be written."""
