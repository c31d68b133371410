"""Connections: one sentence to be written."""
