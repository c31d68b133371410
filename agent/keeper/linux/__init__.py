"""Linux interfaces of the keeper: control groups, kernel log, out-of-memory counters, process
creation.

Knows nothing about executions. Standard library only.
"""
