"""Events: one sentence to be written."""
