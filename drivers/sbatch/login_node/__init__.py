"""Login node: one sentence to be written."""
