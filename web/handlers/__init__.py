"""Handlers: one sentence to be written."""
