"""Host: one sentence to be written."""
