"""Trace: one sentence to be written."""
