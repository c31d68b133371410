"""Settings: one sentence to be written."""
