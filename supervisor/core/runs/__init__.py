"""Runs: one sentence to be written."""
