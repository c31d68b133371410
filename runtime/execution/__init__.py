"""Execution: one sentence to be written."""
