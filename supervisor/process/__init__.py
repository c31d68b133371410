"""The supervisor's process and root directory: lock, identity, limits, listeners, counters and
watchdog.
"""
