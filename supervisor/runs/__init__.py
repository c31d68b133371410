"""Requests about runs: validated, passed to the engine, answered from durable state.

HTTP is in `supervisor.api`; decisions are in `supervisor.core`.
"""
