"""Maintenance: one sentence to be written."""
