"""Submission: one sentence to be written."""
