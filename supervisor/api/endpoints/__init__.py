"""Endpoints: one sentence to be written."""
