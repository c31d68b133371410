"""Transport: one sentence to be written."""
