"""Streams: one sentence to be written."""
