"""Sqlite: one sentence to be written."""
