"""Db: one sentence to be written."""
