"""The keeper's parts: the only code that starts, waits for and ends processes of jobs.

Standard library and runtime.processes only, one thread, no network: what is in here must never be
the reason why a job dies.
"""
