"""Executions: one sentence to be written."""
