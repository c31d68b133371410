"""Runs: admission, attempts and retries, dependencies, termination, retention, and reconciliation
with agents.
"""
