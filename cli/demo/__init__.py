"""Demo: one sentence to be written."""
