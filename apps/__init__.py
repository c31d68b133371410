"""Simulation types: the plug-in contract, the registry, and the built-in apps. How agents call apps
is not here; see `agent/jobs` and `agent/workers`.
"""
