"""The keeper: the only code that starts, reaps and kills processes of jobs.

Imports the standard library and `runtime.processes` only. It has one thread and no network access.
Code here must never be the reason why a job dies.
"""
