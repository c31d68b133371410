"""Ssh: one sentence to be written."""
