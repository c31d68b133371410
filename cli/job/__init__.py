"""Job: one sentence to be written."""
