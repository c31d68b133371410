"""Executions through a batch scheduler: the agent submits, watches, stops and remembers them, with
a keeper's guarantees.
"""
