"""Containers: one sentence to be written."""
