"""Services: one sentence to be written."""
