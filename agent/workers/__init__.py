"""Workers: one sentence to be written."""
