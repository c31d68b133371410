"""Foundations of every process, agents included: clock, logs, processes, files and connections.
Nothing here depends on pykern.
"""
