"""Blueprint: one sentence to be written."""
