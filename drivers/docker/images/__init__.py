"""Images: one sentence to be written."""
