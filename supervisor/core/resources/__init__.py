"""Resources: one sentence to be written."""
