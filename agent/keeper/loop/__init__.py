"""The keeper's event loop, its line protocol with the agent, its log and its retried writes.

Knows nothing about executions.
"""
