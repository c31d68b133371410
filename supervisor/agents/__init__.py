"""Agents: one sentence to be written."""
