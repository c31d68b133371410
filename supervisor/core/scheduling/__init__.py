"""Scheduling: one sentence to be written."""
