"""Interface: one sentence to be written."""
