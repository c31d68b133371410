"""Launch: one sentence to be written."""
