"""Install units: one sentence to be written."""
